//! The bill of materials of the program: every crate that is built into it, with version, licence and what needs what,
//! as [CycloneDX 1.6](https://cyclonedx.org/docs/1.6/json/) in JSON. Tools for tests and builds are not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use crate::commands::{cargo, text_of};

/// The bill of `longshore` as it is built for a platform, such as `x86_64-unknown-linux-gnu`.
pub(crate) fn of(root: &Path, platform: &str) -> anyhow::Result<Value> {
    let mut metadata: Command = cargo(root);
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", platform]);
    bill(&serde_json::from_str(&text_of(&mut metadata)?)?)
}

fn bill(metadata: &Value) -> anyhow::Result<Value> {
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> =
        all(&metadata["packages"]).into_iter().map(|package| (id(&package["id"]), package)).collect();
    let needs: BTreeMap<String, BTreeSet<String>> = all(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            // A dependency without a kind is one of the program itself, not of its build or its tests.
            let is_built_in = |dep: &&Value| all(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            (id(&node["id"]), all(&node["deps"]).iter().filter(is_built_in).map(|dep| id(&dep["pkg"])).collect())
        })
        .collect();
    let is_root = |package: &&Value| package["name"] == "longshore";
    let root = packages.values().find(is_root).map(|package| id(&package["id"])).context("there is no longshore")?;
    let (mut within, mut open) = (BTreeSet::from([root.clone()]), vec![root.clone()]);
    while let Some(next) = open.pop() {
        let new = needs.get(&next).into_iter().flatten().filter(|dep| within.insert((*dep).clone()));
        open.extend(new.cloned().collect::<Vec<_>>());
    }
    let reference = |id: &String| {
        let package = &packages[id];
        let [name, version] = ["name", "version"].map(|field| package[field].as_str().unwrap_or_default());
        format!("pkg:cargo/{name}@{version}")
    };
    let component = |id: &String| {
        let package = &packages[id];
        let mut component = json!({
            "type": if *id == root { "application" } else { "library" },
            "bom-ref": reference(id), "name": package["name"], "version": package["version"], "purl": reference(id),
        });
        if let Some(licence) = package["license"].as_str() {
            // Cargo once took a slash for "or".
            component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
        }
        component
    };
    let needed = |id: &String| needs.get(id).into_iter().flatten().map(reference).collect::<Vec<_>>();
    let components = within.iter().filter(|id| **id != root).map(component).collect::<Vec<_>>();
    let dependencies = within.iter().map(|id| json!({"ref": reference(id), "dependsOn": needed(id)}));
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": component(&root)},
        "components": components,
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_is_in_the_bill_and_no_tool() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bill = of(root, &crate::release::host().unwrap()).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: BTreeSet<&str> = components.iter().map(|one| one["name"].as_str().unwrap()).collect();
        for built_in in ["async-nats", "longshore-domain", "ractor", "rustls"] {
            assert!(names.contains(built_in), "{built_in} is missing");
        }
        for tool in ["proptest", "longshore-harness", "xtask", "longshore"] {
            assert!(!names.contains(tool), "{tool} is not in the program");
        }
        let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
        let refs: BTreeSet<&str> = components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), components.len(), "each is there once");
        for one in components {
            let [name, version] = ["name", "version"].map(|field| one[field].as_str().unwrap());
            assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")), "{name} {version}");
            assert!(one["licenses"][0]["expression"].is_string(), "{name} has no licence");
        }
        for needed in
            bill["dependencies"].as_array().unwrap().iter().flat_map(|one| one["dependsOn"].as_array().unwrap())
        {
            assert!(refs.contains(needed.as_str().unwrap()), "{needed} is needed, and not there");
        }
    }
}
