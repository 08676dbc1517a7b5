//! What is shipped for operating a node fits the program that is shipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use longshore_harness::{eventually, free_ports};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::packages::run;

mod chart;

/// The interpreter of a new virtual environment in the folder, with these packages of PyPI.
fn python_with(folder: &Path, packages: &[&str]) -> Result<String, String> {
    run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
    let python = folder.join("venv/bin/python").display().to_string();
    let pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install"];
    run(Command::new(&python).args(pip).args(packages).current_dir(folder))?;
    Ok(python)
}

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
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            crate::skipped("the unit is not read by systemd, which is not here");
        }
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/longshore.toml");
    let checked = Command::new(binary).args(["config", "check", "--config"]).arg(shipped).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let waits = UNIT.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s')).unwrap();
    assert!(waits.parse::<u64>().unwrap() > 30 + 10 + 2 * 3 + 5, "grace, flush, goodbyes and closing of the lanes");
    // Everything else is read-only to it.
    let logs = UNIT.lines().find_map(|line| line.strip_prefix("LogsDirectory=")).unwrap();
    let logs = format!("/var/log/{logs}/");
    let named = include_str!("../config/longshore.toml").split('"').filter(|text| text.starts_with("/var/log/"));
    let files: Vec<&str> = named.collect();
    assert!(files.len() == 2 && files.iter().all(|file| file.starts_with(&logs)), "{files:?} in {logs}");
    assert!(UNIT.contains("\nRestartPreventExitStatus=2\n"), "as docs/operations.md says of exit codes");
}

/// Given the accounts of tenants, then the server remembers each request to the API for longer than one may wait.
#[test]
fn a_request_of_a_tenants_account_is_remembered_until_its_answer() {
    let accounts = include_str!("../deploy/accounts.conf");
    let is_export = |line: &&str| line.contains("service: \"longshore.api.") && line.contains("accounts: [");
    let exports: Vec<&str> = accounts.lines().filter(is_export).collect();
    assert_eq!(exports.len(), 2, "{exports:?}");
    for export in exports {
        let threshold = export.split_once("threshold: \"").and_then(|(_, rest)| rest.split_once("m\""));
        let minutes: Option<u64> = threshold.and_then(|(minutes, _)| minutes.parse().ok());
        assert!(minutes.is_some_and(|minutes| minutes > 10), "{export}");
    }
}

/// Servers and nodes find each other, and their files.
fn servers_and_nodes_fit(services: &serde_json::Map<String, Value>, file: &dyn Fn(&str) -> PathBuf) {
    let texts = |of: &Value| -> Vec<String> { serde_json::from_value(of.clone()).unwrap() };
    let servers = ["nats-1", "nats-2", "nats-3"];
    for server in servers {
        let command = texts(&services[server]["command"]);
        file(&format!("/etc/nats/{}", command[1].strip_prefix("--config=").unwrap()));
        assert!(command.contains(&format!("--name={server}")) && command.contains(&"--port=4222".to_owned()));
        let routes = servers.map(|other| format!("tls://{other}:6222")).join(",");
        assert!(command.contains(&format!("--routes={routes}")), "{command:?}");
    }
    for node in ["gateway", "worker"] {
        let (service, settings) = (&services[node], &services[node]["environment"]);
        file(&texts(&service["command"])[2]);
        assert_eq!(settings["NATS_URL"], servers.map(|server| format!("tls://{server}:4222")).join(","));
        assert!(settings["OTEL_EXPORTER_OTLP_ENDPOINT"].as_str().unwrap().contains("-http://collector:4318}"));
        assert_eq!(service["networks"]["default"]["aliases"], json!(["longshore"]), "as Prometheus asks");
        assert_eq!(service["stop_grace_period"], "60s");
        assert_eq!(service["depends_on"].as_object().unwrap().len(), servers.len());
    }
}

/// Spans go from the nodes to the collector, and from there to the store that Grafana asks.
fn traces_fit(services: &serde_json::Map<String, Value>, yaml: &dyn Fn(&str) -> Value) {
    let collector = services["collector"]["command"][0].as_str().unwrap();
    let collector = yaml(collector.strip_prefix("--config=").unwrap());
    let listens = &collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"];
    assert!(listens.as_str().unwrap().ends_with(":4318"), "{listens}");
    let pipeline = &collector["service"]["pipelines"]["traces"];
    assert_eq!((&pipeline["receivers"], &pipeline["exporters"]), (&json!(["otlp"]), &json!(["otlp_http"])));
    // Both ports are Jaeger's own, without any setting.
    assert_eq!(collector["exporters"]["otlp_http"]["endpoint"], "http://jaeger:4318");
    let source = &yaml("/etc/grafana/provisioning/datasources/jaeger.yml")["datasources"][0];
    assert_eq!((&source["type"], &source["url"]), (&json!("jaeger"), &json!("http://jaeger:16686")));
    let published = services["jaeger"]["ports"][0].as_str().unwrap();
    assert!(published.ends_with(":16686") && services["jaeger"]["command"].is_null(), "{published}");
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
        let healthy = service["depends_on"].as_object().into_iter().flat_map(|others| others.keys().cloned());
        for other in texts(&service["depends_on"]).into_iter().chain(healthy) {
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

    traces_fit(services, &yaml);
    servers_and_nodes_fit(services, &file);
    assert!(services["gateway"]["command"].to_string().contains("gateway.toml"));
    assert_eq!(services["worker"]["deploy"]["replicas"], 2);
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
}

/// What is in the image of `deploy/Dockerfile`, and what it says of itself.
struct Image {
    root: PathBuf,
    config: Value,
}

impl Image {
    /// Builds the last stage, with this program in the place of the one that the stage before it would compile.
    fn build(program: &str, folder: &Path) -> Result<Self, String> {
        let stage = folder.join("stage");
        for (from, to) in [
            (program, "usr/local/bin/longshore"),
            ("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt"),
        ] {
            std::fs::create_dir_all(stage.join(to).parent().unwrap()).unwrap();
            std::fs::copy(from, stage.join(to)).map_err(|error| format!("{from}: {error}"))?;
        }
        let buildah = || {
            let mut buildah = Command::new("buildah");
            buildah.env("BUILDAH_ISOLATION", "chroot").env("STORAGE_DRIVER", "vfs").arg("--root");
            buildah.arg(folder.join("images")).arg("--runroot").arg(folder.join("run"));
            buildah
        };
        let context = format!("build={}", stage.display());
        let built = ["bud", "--quiet", "--format", "docker", "--target", "runtime", "--build-context", &context];
        let named = ["--file", "deploy/Dockerfile", "--tag", "longshore", "."];
        run(buildah().args(built).args(named).current_dir(env!("CARGO_MANIFEST_DIR")))?;
        let pushed = folder.join("pushed");
        run(buildah().args(["push", "--quiet", "longshore"]).arg(format!("dir:{}", pushed.display())))?;
        let blob = |of: &Value| pushed.join(of["digest"].as_str().unwrap().trim_start_matches("sha256:"));
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
        let manifest = read(pushed.join("manifest.json"));
        let root = folder.join("root");
        std::fs::create_dir(&root).unwrap();
        let layers = manifest["layers"].as_array().unwrap();
        for layer in layers {
            run(Command::new("tar").arg("--extract").arg("--file").arg(blob(layer)).arg("--directory").arg(&root))?;
        }
        eprintln!("the image with {program}: {} bytes compressed", layers[0]["size"]);
        Ok(Self { root, config: read(blob(&manifest["config"]))["config"].clone() })
    }

    /// The files in it, sorted.
    fn files(&self) -> Vec<String> {
        let found = run(Command::new("find").args([".", "-not", "-type", "d"]).current_dir(&self.root)).unwrap();
        let mut files: Vec<String> = found.lines().map(ToOwned::to_owned).collect();
        files.sort_unstable();
        files
    }

    /// What a container runtime adds, the names of others among it, and the libraries of a program that was not linked
    /// statically, as those of tests.
    fn complete(&self) {
        for mount_point in ["proc", "dev"] {
            std::fs::create_dir_all(self.root.join(mount_point)).unwrap();
        }
        std::fs::write(self.root.join("etc/hosts"), "127.0.0.1 nats\n").unwrap();
        let libraries = run(Command::new("ldd").arg(self.root.join("usr/local/bin/longshore"))).unwrap_or_default();
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/') && Path::new(word).is_file()) {
            let to = self.root.join(library.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(library, to).unwrap();
        }
    }

    /// A command of the image as its runtime runs it: in a network of its own, read-only, as the image's user,
    /// without any capability.
    fn command(&self, network: &Network, arguments: &Value, settings: &[(&str, &str)]) -> Command {
        let (user, group) = self.config["User"].as_str().unwrap().split_once(':').unwrap();
        let mut command = network.enter();
        command.args(["bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--clearenv", "--cap-drop", "ALL"]);
        command.args(["--uid", user, "--gid", group, "--ro-bind"]).arg(&self.root);
        command.args(["/", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/"]);
        let own = self.config["Env"].as_array().unwrap().iter();
        for (name, value) in
            own.map(|pair| pair.as_str().unwrap().split_once('=').unwrap()).chain(settings.iter().copied())
        {
            command.args(["--setenv", name, value]);
        }
        command.args(arguments.as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()));
        command
    }
}

/// Given the image's last stage, built with the program of these tests, when it runs as a container does, read-only, as
/// a user without rights, then its node does a job and its health check passes; and it holds nothing but what it needs.
#[tokio::test]
async fn the_image_runs_read_only_and_holds_nothing_else() {
    for needed in ["buildah", "bwrap"] {
        if let Err(problem) = run(Command::new(needed).arg("--version")) {
            return crate::skipped(&format!("the image is neither built nor run: {problem}"));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let network = match Network::with_server(folder.path()).await {
        Ok(network) => network,
        Err(problem) => return crate::skipped(&format!("the image is neither built nor run: {problem}")),
    };
    let program = std::env::var("LONGSHORE_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_longshore").to_owned());
    let image = Image::build(&program, folder.path()).unwrap_or_else(|problem| panic!("{problem}"));
    assert_eq!(image.files(), ["./etc/passwd", "./etc/ssl/certs/ca-certificates.crt", "./usr/local/bin/longshore"]);
    assert_eq!((&image.config["User"], &image.config["Entrypoint"]), (&json!("65532:65532"), &json!(["longshore"])));
    image.complete();
    works(&network, &image, &folder.path().join("image.log")).await;
}

/// A network that nothing else is in but a nats-server; it ends with that.
struct Network {
    _server: Child,
    pid: String,
}

impl Network {
    async fn with_server(folder: &Path) -> Result<Self, String> {
        let program = longshore_natsd::find_or_provision().await.map_err(|error| error.to_string())?;
        let pid = folder.join("nats.pid");
        let mut command = tokio::process::Command::new("bwrap");
        command.args(["--dev-bind", "/", "/", "--unshare-net", "--die-with-parent"]).arg(program);
        command.args(["--addr=127.0.0.1", "--port=4222", "--jetstream", "--store_dir"]).arg(folder.join("nats"));
        command.arg("--pid").arg(&pid).arg("--log").arg(folder.join("nats.log")).kill_on_drop(true);
        let server = command.spawn().map_err(|error| error.to_string())?;
        let written = async || std::fs::read_to_string(&pid).ok().filter(|pid| !pid.is_empty()).ok_or("no pid");
        let pid = eventually("the pid of the server", Duration::from_secs(60), written).await;
        let network = Self { _server: server, pid };
        run(network.enter().arg("true")).map(|_| network)
    }

    /// The beginning of a command in it.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid)).arg("--");
        command
    }
}

/// A job is done by the image's node, which its own health check says is ready, and which finds its server by name.
async fn works(network: &Network, image: &Image, log: &Path) {
    let settings = [("NATS_URL", "nats://nats:4222")];
    let serve = json!(["longshore", "serve"]);
    let mut node = tokio::process::Command::from(image.command(network, &serve, &settings));
    let mut node = node.stderr(std::fs::File::create(log).unwrap()).kill_on_drop(true).spawn().unwrap();
    let check = image.config["Healthcheck"]["Test"].as_array().unwrap();
    assert_eq!(check[0], "CMD");
    let check = Value::from(check[1..].to_vec());
    let ready = async || {
        let checked = run(&mut image.command(network, &check, &[]));
        checked.map_err(|problem| format!("{problem}\n{}", std::fs::read_to_string(log).unwrap_or_default()))
    };
    eventually("the health check of the image", Duration::from_secs(120), ready).await;
    let submit = json!(["longshore", "submit", "echo", "\"in a container\"", "--wait"]);
    let done = run(&mut image.command(network, &submit, &settings)).unwrap();
    assert!(done.contains("in a container"), "{done}");
    node.kill().await.unwrap();
}

/// Given the set-up for docker compose, then the Compose specification knows its every field; without a network that is
/// not checked.
#[test]
fn the_compose_specification_knows_every_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    match python_with(folder.path(), &["compose-spec==0.2.1", "jsonschema==4.26.0", "pyyaml==6.0.4"]) {
        Ok(python) => {
            let mut check = Command::new(python);
            let checked = run(check.arg(root.join("tests/deploy/compose.py")).arg(root.join("docker-compose.yml")));
            assert!(checked.as_ref().is_ok_and(|said| said.contains("all checked")), "{checked:?}");
        }
        Err(problem) => crate::skipped(&format!("docker-compose.yml is not held to its specification: {problem}")),
    }
}

/// The services of docker compose, started here: with their commands, files and variables, at addresses of this
/// machine.
struct Composed {
    services: Value,
    folder: tempfile::TempDir,
    /// What stands for what: addresses, folders and passwords.
    instead: Vec<(String, String)>,
    servers: Vec<Child>,
    /// A node's name, its service and its process.
    nodes: Mutex<Vec<(&'static str, &'static str, Child)>>,
}

impl Composed {
    /// Makes what the script makes, and chooses the addresses.
    async fn new() -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let (etc, passwords) = (folder.path().join("etc"), folder.path().join("passwords"));
        run(Command::new("cp").arg("-R").arg(root.join("deploy/compose")).arg(&etc))?;
        let _ = std::fs::remove_dir_all(etc.join("tls"));
        run(Command::new(root.join("deploy/compose/set-up.sh")).arg(etc.join("tls")).arg(&passwords))?;
        let mut instead = vec![("/etc/longshore".to_owned(), etc.display().to_string())];
        let lines = std::fs::read_to_string(passwords).unwrap();
        for (name, password) in lines.lines().map(|line| line.split_once('=').unwrap()) {
            instead.push((format!("${{{name}}}"), password.to_owned()));
            instead.push((format!("${{{name}:?run deploy/compose/set-up.sh first}}"), password.to_owned()));
        }
        let servers = ["nats-1", "nats-2", "nats-3"].into_iter();
        let named = servers.flat_map(|server| [4222, 6222].map(|port| format!("{server}:{port}")));
        instead.extend(named.zip(free_ports(6).into_iter().map(|port| format!("127.0.0.1:{port}"))));
        let compose: Value = serde_saphyr::from_str(include_str!("../docker-compose.yml")).unwrap();
        Ok(Self {
            services: compose["services"].clone(),
            folder,
            instead,
            servers: Vec::new(),
            nodes: Mutex::default(),
        })
    }

    fn replaced(&self, text: &str) -> String {
        self.instead.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// A service's program with its arguments and variables.
    fn command(&self, service: &str, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments.iter().map(|argument| self.replaced(argument)));
        for (name, value) in self.services[service]["environment"].as_object().unwrap() {
            command.env(name, self.replaced(value.as_str().unwrap()));
        }
        command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT").current_dir(self.folder.path().join("etc"));
        command
    }

    fn arguments(&self, service: &str) -> Vec<String> {
        let texts = self.services[service]["command"].as_array().unwrap();
        texts.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    fn start(&self, name: &str, command: Command) -> Child {
        let log = self.folder.path().join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = tokio::process::Command::from(command);
        command.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true).spawn().unwrap()
    }

    fn start_node(&self, name: &str, service: &str) -> Child {
        let longshore = Path::new(env!("CARGO_BIN_EXE_longshore"));
        let mut command = self.command(service, longshore, &self.arguments(service));
        command.env("LONGSHORE_HTTP__LISTEN", "off").env("LONGSHORE_NODE__NAME", name);
        self.start(name, command)
    }

    /// Starts the nodes again that have ended, as their services have it: the cluster was not there in time.
    fn restart_ended(&self) {
        for (name, service, node) in &mut *self.nodes.lock().unwrap() {
            assert_eq!(self.services[*service]["restart"], "unless-stopped");
            if node.try_wait().unwrap().is_some() {
                *node = self.start_node(name, service);
            }
        }
    }

    /// One of the three servers.
    fn start_server(&mut self, server: &str, program: &Path) {
        let address = |port| self.replaced(&format!("{server}:{port}"));
        let (clients, others) = (address(4222), address(6222));
        let data = self.folder.path().join(server);
        let own = |argument: String| match argument.split_once('=') {
            Some(("--addr", _)) => "--addr=127.0.0.1".to_owned(),
            Some(("--port", _)) => format!("--port={}", clients.rsplit_once(':').unwrap().1),
            Some(("--http_port", _)) => "--http_port=-1".to_owned(),
            Some(("--store_dir", _)) => format!("--store_dir={}", data.display()),
            Some(("--cluster", _)) => format!("--cluster=nats://{others}"),
            _ => argument,
        };
        let arguments: Vec<String> = self.arguments(server).into_iter().skip(1).map(own).collect();
        let command = self.command(server, program, &arguments);
        self.servers.push(self.start(server, command));
    }

    /// The logs of all.
    fn logs(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().path());
        let logs = files.filter(|file| file.extension().is_some_and(|end| end == "log"));
        logs.map(|log| format!("{}:\n{}", log.display(), std::fs::read_to_string(&log).unwrap())).collect()
    }
}

/// Given the certificates and passwords that the script makes, when the three servers, a gateway, two workers and the
/// producer of docker compose run with their own files and commands, then both workers do jobs, the producer's as well,
/// nobody lacks a right, and who has no password, or does not know the authority, gets nowhere.
#[tokio::test]
async fn the_services_of_docker_compose_work_together() {
    let mut all = match Composed::new().await {
        Ok(all) => all,
        Err(problem) => {
            return crate::skipped(&format!("the services of docker-compose.yml are not started: {problem}"));
        }
    };
    let server = longshore_natsd::find_or_provision().await.unwrap();
    for name in ["nats-1", "nats-2", "nats-3"] {
        all.start_server(name, &server);
    }
    let longshore = Path::new(env!("CARGO_BIN_EXE_longshore"));
    // As many workers as there are replicas.
    for (service, node) in [("gateway", "gateway"), ("worker", "worker-1"), ("worker", "worker-2")] {
        let process = all.start_node(node, service);
        all.nodes.lock().unwrap().push((node, service, process));
    }
    let within = Duration::from_secs(240);
    let made = async || {
        all.restart_ended();
        run(&mut all.command("producer", longshore, &all.arguments("producer")))
    };
    eventually("the producer to make its schedule", within, async || {
        made().await.map_err(|problem| format!("{problem}\n{}", all.logs()))
    })
    .await;
    let ask = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        all.command("producer", longshore, &arguments)
    };
    let scheduled = ["runs", "list", "--state", "completed", "--type", "echo", "--json"];
    eventually("a job of its schedule to be done", within, async || {
        let listed = run(&mut ask(&scheduled))?;
        if listed.contains("demo-") { Ok(()) } else { Err(listed) }
    })
    .await;
    let done = eventually("each worker to do a job", within, async || {
        all.restart_ended();
        assert!(run(&mut ask(&["submit", "echo", "17", "--wait"])).unwrap().contains("17"));
        let listed = run(&mut ask(&["runs", "list", "--state", "completed", "--json"])).unwrap();
        let both = listed.contains("\"worker-1\"") && listed.contains("\"worker-2\"");
        if both { Ok(listed) } else { Err(format!("{listed}\n{}", all.logs())) }
    })
    .await;
    assert!(!all.logs().contains("Violation"), "{}", all.logs());
    assert!(!done.contains("\"gateway\""), "who does the jobs: {done}");

    assert!(run(ask(&["queues"]).env("NATS_PASSWORD", "wrong")).is_err());
    assert!(run(ask(&["queues"]).env_remove("NATS_CA")).is_err());
}
