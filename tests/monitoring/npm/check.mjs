// Compiles dashboards as literals of Grafana's own types: a misspelt field, a wrong type or an unknown choice is an error.
//   node check.mjs DASHBOARD.json...   prints one line per problem; the exit status is 0 only if there is none.
import fs from 'node:fs';
import path from 'node:path';
import ts from 'typescript';

// The types of a panel's own options and of its fields' drawing, by the panel's type.
const PANELS = {
  timeseries: ['timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen', 'FieldConfig'],
  stat: ['stat/panelcfg/x/StatPanelCfg_types.gen', null],
  table: ['table/panelcfg/x/TablePanelCfg_types.gen', 'FieldConfig'],
  heatmap: ['heatmap/panelcfg/x/HeatmapPanelCfg_types.gen', 'FieldConfig'],
};

// JSON has strings where the types have enumerations: `${E}` is the union of an enumeration's values.
const PRELUDE = `
import type {AnnotationQuery, Dashboard, FieldConfig, Panel, RowPanel, VariableModel} from '@grafana/schema';
${Object.entries(PANELS).map(([name, [file]]) => `import type * as ${name} from '@grafana/schema/dist/esm/raw/composable/${file}';`).join('\n')}
type Json<T> = T extends string ? \`\${T}\` : T extends (infer U)[] ? Json<U>[] : T extends object ? {[K in keyof T]: Json<T[K]>} : T;
type Query = {refId: string; expr: string; legendFormat?: string; instant?: boolean; range?: boolean; format?: 'table' | 'heatmap'};
type Graph = Omit<Json<Panel>, 'options' | 'fieldConfig' | 'targets'> & {options: unknown; fieldConfig: unknown; targets: Query[]};
type Board = Omit<Json<Dashboard>, 'panels' | 'templating' | 'annotations'> & {panels: unknown; templating: unknown; annotations: unknown};
type Annotation = Omit<Json<AnnotationQuery>, 'target'> & {target: Query; titleFormat: string};
`;

function literals(name, dashboard) {
  const out = [];
  const declare = (what, type, value) => out.push(`// ${name}: ${what}\nexport const v${out.length}: ${type} = ${JSON.stringify(value, null, 1)};`);
  declare('the dashboard', 'Board', dashboard);
  for (const variable of dashboard.templating.list) declare(`variable ${variable.name}`, 'Json<VariableModel>', variable);
  for (const annotation of dashboard.annotations.list) declare(`annotation ${annotation.name}`, 'Annotation', annotation);
  for (const panel of dashboard.panels) {
    const what = `panel "${panel.title}"`;
    if (panel.type === 'row') {
      declare(what, 'Json<RowPanel>', panel);
      continue;
    }
    if (!PANELS[panel.type]) {
      console.log(`${name}: ${what} has the unknown type ${panel.type}`);
      process.exitCode = 1;
      continue;
    }
    const {custom, ...defaults} = panel.fieldConfig.defaults;
    declare(what, 'Graph', panel);
    declare(`${what}: options`, `Json<Partial<${panel.type}.Options>>`, panel.options);
    declare(`${what}: fields`, 'Json<FieldConfig>', defaults);
    const drawing = PANELS[panel.type][1];
    if (custom) declare(`${what}: drawing`, drawing ? `Json<Partial<${panel.type}.${drawing}>>` : 'never', custom);
  }
  return out.join('\n');
}

function problems(files) {
  const source = PRELUDE + files.map((file) => {
    const literal = literals(path.basename(file), JSON.parse(fs.readFileSync(file, 'utf8')));
    return `namespace d${files.indexOf(file)} {\n${literal}\n}`;
  }).join('\n');
  const main = path.resolve('dashboards.ts');
  const options = {strict: true, noEmit: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler};
  const host = ts.createCompilerHost(options);
  const {getSourceFile, fileExists} = host;
  host.fileExists = (name) => name === main || fileExists(name);
  host.getSourceFile = (name, language) => name === main ? ts.createSourceFile(name, source, language) : getSourceFile.call(host, name, language);
  return ts.getPreEmitDiagnostics(ts.createProgram([main], options, host)).map((error) => {
    const before = source.slice(0, error.start ?? 0);
    const where = before.slice(before.lastIndexOf('\n// ') + 4).split('\n')[0];
    return `${where}: ${ts.flattenDiagnosticMessageText(error.messageText, ' ').slice(0, 300)}`;
  });
}

const found = problems(process.argv.slice(2));
found.forEach((problem) => console.log(problem));
if (found.length) process.exitCode = 1;
