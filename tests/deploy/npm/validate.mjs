// Checks Kubernetes objects: `node validate.mjs SCHEMAS <OBJECTS`, where OBJECTS is a JSON array and SCHEMAS a folder of JSON
// Schemas (API-GROUP_KIND.json) for kinds of which no package has the types. Prints a JSON array of [INDEX, PROBLEM].
//
// The kinds of Kubernetes and of Prometheus' operator are checked twice: by the packages' validators (required fields, types,
// enumerations, quantities), and as a literal of the packages' TypeScript types, which is what notices unknown fields.
import fs from 'node:fs';
import path from 'node:path';
import { Ajv } from 'ajv';
import ts from 'typescript';

const OPERATOR = { 'monitoring.coreos.com': '@kubernetes-models/prometheus-operator' };
const problems = [];

function moduleOf(object) {
  const [group, version] = object.apiVersion.includes('/') ? object.apiVersion.split('/') : ['', object.apiVersion];
  return [OPERATOR[group] ?? 'kubernetes-models', group, version, object.kind].filter(Boolean).join('/');
}

function ownSchema(object) {
  const file = path.join(process.argv[2], `${object.apiVersion.split('/')[0]}_${object.kind}.json`);
  return fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf8')) : null;
}

const ajv = new Ajv({ allErrors: true, strict: false });

function checkOwn(index, object, schema) {
  const validate = ajv.compile(schema);
  if (validate(object)) return;
  for (const error of validate.errors) {
    const name = error.params.additionalProperty ? ` '${error.params.additionalProperty}'` : '';
    problems.push([index, `${error.instancePath || '/'} ${error.message}${name}`]);
  }
}

async function checkWithPackage(index, object) {
  const name = moduleOf(object);
  try {
    const types = await import(name);
    new types[object.kind](object).validate();
  } catch (error) {
    if (error.code === 'ERR_MODULE_NOT_FOUND') {
      problems.push([index, `there are no types for ${object.apiVersion} ${object.kind}`]);
      return '';
    }
    problems.push([index, error.message]);
  }
  return `import type { I${object.kind} as T${index} } from '${name}';\n` +
         `export const o${index}: T${index} = ${JSON.stringify(object, null, 1)};\n`;
}

// Compiles a single source with all objects; a diagnostic belongs to the object that contains its line.
function checkUnknownFields(parts) {
  const source = parts.map(([, text]) => text).join('');
  const starts = [];
  let line = 0;
  for (const [index, text] of parts) {
    starts.push([line, index]);
    line += text.split('\n').length - 1;
  }
  const file = path.resolve('objects.ts');
  const options = {
    strict: true, noEmit: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext,
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists } = host;
  host.fileExists = (name) => name === file || fileExists(name);
  host.getSourceFile = (name, ...more) =>
    name === file ? ts.createSourceFile(name, source, ...more) : getSourceFile.call(host, name, ...more);
  for (const error of ts.getPreEmitDiagnostics(ts.createProgram([file], options, host))) {
    const text = ts.flattenDiagnosticMessageText(error.messageText, ' ').slice(0, 300);
    const at = error.file?.fileName === file ? error.file.getLineAndCharacterOfPosition(error.start).line : -1;
    const owner = starts.filter(([start]) => start <= at).pop();
    problems.push([owner ? owner[1] : -1, text]);
  }
}

const parts = [];
for (const [index, object] of JSON.parse(fs.readFileSync(0, 'utf8')).entries()) {
  const schema = ownSchema(object);
  if (schema) checkOwn(index, object, schema);
  else parts.push([index, await checkWithPackage(index, object)]);
}
checkUnknownFields(parts);
console.log(JSON.stringify(problems));
