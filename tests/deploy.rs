//! What is shipped for operating a node fits the program that is shipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const UNIT: &str = include_str!("../deploy/longshore.service");

/// Given the systemd unit, when systemd reads it, then it finds nothing wrong; without systemd here, only what follows
/// is checked: its command is one of the program's, and systemd waits longer for the end than a drain may take.
#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("longshore.service");
    let binary = env!("CARGO_BIN_EXE_longshore");
    assert!(UNIT.contains("ExecStart=/usr/local/bin/longshore serve --config /etc/longshore/longshore.toml\n"));
    std::fs::write(&unit, UNIT.replace("/usr/local/bin/longshore", binary)).unwrap();
    let said = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output();
    match said {
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            // Other units of the machine may be read and complained about; this one's name is not in their lines.
            let about_it: Vec<&str> = text.lines().filter(|line| line.contains("longshore.service")).collect();
            assert!(said.status.success() && about_it.is_empty(), "{text}");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/longshore.toml");
    let checked = Command::new(binary).args(["config", "check", "--config"]).arg(shipped).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let waits = UNIT.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s')).unwrap();
    assert!(waits.parse::<u64>().unwrap() > 30 + 10 + 2 * 3 + 5, "grace, flush, goodbyes and closing of the lanes");
}

/// Given the set-up for docker compose, then every file that it mounts is there, every file that it names lies in what
/// it mounts, and each service asks another at the port where that one listens.
#[test]
fn what_docker_compose_wires_together_fits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compose: Value = serde_saphyr::from_str(include_str!("../docker-compose.yml")).unwrap();
    let services = compose["services"].as_object().unwrap();
    let texts = |of: &Value| -> Vec<String> {
        of.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    // Where each file of the repository is in the containers.
    let mut mounted = BTreeMap::new();
    for (name, service) in services {
        for volume in texts(&service["volumes"]) {
            let (here, there) = volume.split_once(':').unwrap();
            match here.strip_prefix("./") {
                Some(path) => {
                    assert!(root.join(path).exists(), "{name} mounts {path}");
                    mounted.insert(there.trim_end_matches(":ro").to_owned(), root.join(path));
                }
                None => assert!(compose["volumes"].as_object().unwrap().contains_key(here), "{name}: {volume}"),
            }
        }
        for other in texts(&service["depends_on"]) {
            assert!(services.contains_key(&other), "{name} waits for {other}");
        }
    }
    let file = |path: &str| {
        let below = |(there, here): (&String, &PathBuf)| match path.strip_prefix(there)? {
            "" => Some(here.clone()),
            rest => Some(here.join(rest.strip_prefix('/')?)),
        };
        let found = mounted.iter().find_map(below).filter(|file| file.exists());
        found.unwrap_or_else(|| panic!("{path} is mounted nowhere"))
    };
    let yaml = |path: &str| serde_saphyr::from_str::<Value>(&std::fs::read_to_string(file(path)).unwrap()).unwrap();

    let collector = texts(&services["collector"]["command"]);
    let receivers = &yaml(collector[0].strip_prefix("--config=").unwrap())["receivers"]["otlp"]["protocols"];
    assert!(
        receivers["http"]["endpoint"].as_str().unwrap().ends_with(":4318"),
        "as the comment above the services says"
    );
    let longshore = texts(&services["longshore"]["command"]);
    file(&longshore[2]);
    let asked = &yaml("/etc/prometheus/prometheus.yml")["scrape_configs"][0]["dns_sd_configs"][0];
    assert_eq!(asked["names"], json!(["longshore"]));
    let listens = format!("ENV LONGSHORE_HTTP__LISTEN=0.0.0.0:{}\n", asked["port"]);
    assert!(include_str!("../deploy/Dockerfile").contains(&listens), "{listens}");
    file("/etc/prometheus/alerts.yml");
    let boards = yaml("/etc/grafana/provisioning/dashboards/longshore.yml");
    assert!(file(boards["providers"][0]["options"]["path"].as_str().unwrap()).is_dir());
    file(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str().unwrap());
    let source = yaml("/etc/grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["url"].clone();
    let published = texts(&services["prometheus"]["ports"]).concat();
    assert!(source == "http://prometheus:9090" && published.ends_with(":9090"), "{source} {published}");
    assert_eq!(services["longshore"]["environment"]["NATS_URL"], "nats://nats:4222");
}
