//! The shop of the examples: each order is charged once, has one invoice and one e-mail, whatever fails.

use std::path::Path;
use std::process::Stdio;

use longshore_harness::{Node, World, free_ports};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::packages::python_package;
use crate::{WITHIN, in_future, times, world};

async fn node(world: &World, name: &str, settings: &str) -> Node {
    let node = world.node().name(name).config(settings).with("faults", "allowed = true");
    node.with("node", "lease = '2s'").start().await
}

/// The last lines.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// A tenth of the attempts of each type meets a fault on purpose, beside those of the services themselves.
async fn rehearse(world: &World) {
    for (job_type, kind, step) in [
        ("shop.charge", "fail_after_work", None),
        ("shop.invoice", "fail_at_step", Some("write")),
        ("shop.mail", "fail_after_work", None),
    ] {
        let until = in_future(2 * WITHIN);
        let mut fault = json!({"type": job_type, "kind": kind, "probability": 0.1, "until": until});
        if let Some(step) = step {
            fault["step"] = json!(step);
        }
        world.try_request("_all", "faults.set", fault).await.unwrap();
    }
}

/// Given services that fail, also after they have done their work, and faults on purpose, when nodes and the worker are
/// killed and the server is restarted while orders go through, then each order is charged once and has one invoice, and
/// one e-mail but where the acknowledgement was lost.
#[tokio::test]
async fn every_order_is_charged_once_whatever_fails() {
    let folder = tempfile::tempdir().unwrap();
    let python = match python_package(folder.path()) {
        Ok(python) => python,
        Err(problem) => return crate::skipped(&format!("the shop: {problem}")),
    };
    let world = world().await;
    let [charge, mail] = free_ports(2).try_into().unwrap();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/shop");
    let settings = std::fs::read_to_string(shop.join("longshore.toml")).unwrap();
    let settings = settings.replace(":9000/", &format!(":{charge}/")).replace(":9025", &format!(":{mail}"));
    let nodes = [node(&world, "n1", &settings).await, node(&world, "n2", &settings).await];
    rehearse(&world).await;

    let orders = times("LONGSHORE_TEST_ORDERS", 120);
    let mut shop_runs = Command::new(python);
    shop_runs.arg(shop.join("shop.py")).arg(orders.to_string()).env("NATS_URL", world.urls());
    shop_runs.env("SHOP_CHARGE_PORT", charge.to_string()).env("SHOP_MAIL_PORT", mail.to_string());
    shop_runs.env("TMPDIR", folder.path());
    let complaints = folder.path().join("complaints");
    shop_runs.stderr(std::fs::File::create(&complaints).unwrap());
    let mut shop_runs = shop_runs.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(shop_runs.stdout.take().unwrap()).lines();
    let mut submitted = 0;
    let mut said = String::new();
    while let Some(line) = tokio::time::timeout(WITHIN, lines.next_line()).await.expect("a line in time").unwrap() {
        submitted += usize::from(line.starts_with("submitted"));
        if submitted == orders {
            submitted += 1;
            for node in &nodes {
                node.kill9().await;
                node.restart().await;
            }
            world.server().kill9().await;
            world.server().restart().await.unwrap();
        }
        if !line.starts_with("submitted") {
            said += &format!("{line}\n");
        }
    }
    let mut injected = 0;
    for record in world.request("runs.list", json!({"limit": 500})).await["runs"].as_array().unwrap() {
        let errors =
            record["attempts"].as_array().into_iter().flatten().filter_map(|made| made["error"]["message"].as_str());
        injected += errors.filter(|message| message.starts_with("injected: ")).count();
    }
    println!("{said}attempts that met a fault on purpose, of the last 500 runs: {injected}");
    let is_well = shop_runs.wait().await.unwrap().success() && said.contains("all is well");
    assert!(is_well, "{said}{}", tail(&std::fs::read_to_string(complaints).unwrap()));
    assert!(injected > 0, "{said}");
}
