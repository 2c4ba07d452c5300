import * as echarts from 'echarts/core';
import { BarChart, LineChart, ScatterChart, TreemapChart } from 'echarts/charts';
import { AriaComponent, GridComponent, LegendComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
echarts.use([BarChart, LineChart, ScatterChart, TreemapChart, AriaComponent, GridComponent, LegendComponent, TooltipComponent, SVGRenderer]);
export { init, getInstanceByDom, version } from 'echarts/core';
