// Checks objects of KEDA and of the Prometheus operator against their definitions: node crds.mjs crds.json
//
// A definition says nothing of a field that it does not have. So each field is once given a value that no definition allows: if
// that changes nothing, there is no such field. Needs @kubernetes-models/keda and @kubernetes-models/prometheus-operator.
import { readFileSync } from "node:fs";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as operator from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const models = { ...keda, ...operator };
const nothing = () => {};
let checked = 0;

function valid(thing) {
  try {
    new models[thing.kind](thing).validate();
    return true;
  } catch {
    return false;
  }
}

function fields(thing, part, path) {
  for (const [name, value] of Object.entries(part)) {
    part[name] = nothing;
    if (valid(thing)) throw new Error(`${thing.kind} has no ${path}${name}`);
    part[name] = value;
    checked += 1;
    if (value && typeof value === "object") fields(thing, value, `${path}${name}.`);
  }
}

const things = JSON.parse(readFileSync(process.argv[2], "utf8"));
for (const thing of things) {
  new models[thing.kind](thing).validate();
  fields(thing, thing.spec, "spec.");
}
console.log(`all checked: ${things.length} objects, ${checked} fields`);
