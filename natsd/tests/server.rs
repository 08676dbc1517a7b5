//! A private server from its start to its end, against the real binary. This room speaks no NATS, so the tests say the
//! few words they need over a bare socket.
#![allow(clippy::unwrap_used, reason = "this whole file is tests; clippy excepts only the functions marked as such")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longshore_natsd::{Error, Options, Server};

/// A NATS connection that can do one thing: ask a question.
struct Wire(BufReader<TcpStream>);

impl Wire {
    fn connect(server: &Server) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut wire = Wire(BufReader::new(stream));
        assert!(wire.line().starts_with("INFO {"));
        wire
    }

    fn ask(&mut self, subject: &str, body: &str) -> String {
        let words = format!(
            "CONNECT {{\"verbose\":false}}\r\nSUB _INBOX.a 1\r\nPUB {subject} _INBOX.a {}\r\n{body}\r\n",
            body.len()
        );
        self.0.get_mut().write_all(words.as_bytes()).unwrap();
        while !self.line().starts_with("MSG _INBOX.a") {}
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

fn create_stream(server: &Server) -> String {
    Wire::connect(server).ask("$JS.API.STREAM.CREATE.A", r#"{"name":"A","subjects":["a"],"storage":"file"}"#)
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| state(&stat) != 'Z')
}

fn state(stat: &str) -> char {
    stat.rsplit(')').next().unwrap().trim_start().chars().next().unwrap()
}

#[tokio::test]
async fn a_server_starts_with_jetstream_and_stops_when_asked() {
    let server = Server::start(Options::default()).await.unwrap();
    assert!(create_stream(&server).contains("\"created\""));
    assert_eq!(server.url(), format!("nats://127.0.0.1:{}", server.port()));
    assert!(server.dir().join("jetstream").is_dir());

    server.stop().await.unwrap();
    assert!(server.ended().await.success());
    assert_eq!(server.pid(), None);
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.stop().await.expect("stopping what is down does nothing");
}

#[tokio::test]
async fn killed_and_restarted_it_has_its_port_and_its_data() {
    let server = Server::start(Options::default()).await.unwrap();
    create_stream(&server);
    let (url, pid) = (server.url(), server.pid().unwrap());

    server.kill9().await;
    assert_eq!(server.ended().await.signal(), Some(9));
    server.restart().await.unwrap();

    assert_eq!(server.url(), url);
    assert_ne!(server.pid().unwrap(), pid);
    assert!(Wire::connect(&server).ask("$JS.API.STREAM.INFO.A", "").contains("\"subjects\":[\"a\"]"));
}

#[tokio::test]
async fn many_start_at_once_each_on_its_own_port() {
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..6 {
        starting.spawn(async { Server::start(Options::default()).await.unwrap() });
    }
    let servers = starting.join_all().await;
    let mut ports: Vec<_> = servers.iter().map(Server::port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 6);
}

#[tokio::test]
async fn a_given_folder_stays_and_has_one_server_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { dir: Some(dir.path().join("a \"b\"")), ..Options::default() };
    let first = Server::start(options.clone()).await.unwrap();
    create_stream(&first);
    let error = Server::start(options.clone()).await.unwrap_err();
    assert!(matches!(error, Error::FolderTaken { .. }), "{error}");

    drop(first);
    let second = Server::start(options).await.unwrap();
    assert!(Wire::connect(&second).ask("$JS.API.STREAM.INFO.A", "").contains("\"subjects\":[\"a\"]"));
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let first = Server::start(Options::default()).await.unwrap();
    let error = Server::start(Options { port: Some(first.port()), ..Options::default() }).await.unwrap_err();
    assert!(matches!(error, Error::PortTaken { port } if port == first.port()), "{error}");
}

#[tokio::test]
async fn extra_configuration_is_obeyed_and_a_mistake_in_it_is_shown() {
    let extra = "max_payload: 4096\nauthorization { token: \"open\" }".to_owned();
    let extra_jetstream = "sync_interval: always".to_owned();
    let server = Server::start(Options { extra, extra_jetstream, ..Options::default() }).await.unwrap();
    let mut greeting = String::new();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    BufReader::new(stream).read_line(&mut greeting).unwrap();
    assert!(greeting.contains("\"max_payload\":4096") && greeting.contains("\"auth_required\":true"), "{greeting}");

    let error = Server::start(Options { extra: "accounts {".to_owned(), ..Options::default() }).await.unwrap_err();
    assert!(matches!(&error, Error::Ended { log, .. } if log.contains("Parse error")), "{error}");
}

#[tokio::test]
async fn one_that_never_gets_ready_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("hangs");
    let script = r#"printf '#!/bin/sh\necho thinking >&2; exec sleep 1000\n' > "$1"; chmod +x "$1""#;
    assert!(Command::new("sh").args(["-c", script, "sh"]).arg(&binary).status().unwrap().success());
    let ready_within = Duration::from_millis(300);
    let options = Options { binary: Some(binary), ready_within, ..Options::default() };
    let error = Server::start(options).await.unwrap_err();
    assert!(matches!(&error, Error::NotReady { log, .. } if log == "thinking"), "{error}");
}

#[tokio::test]
async fn a_frozen_server_thaws_and_can_be_stopped_while_frozen() {
    let server = Server::start(Options::default()).await.unwrap();
    let stat = format!("/proc/{}/stat", server.pid().unwrap());
    server.sigstop();
    let deadline = Instant::now() + Duration::from_secs(10);
    while state(&std::fs::read_to_string(&stat).unwrap()) != 'T' {
        assert!(Instant::now() < deadline, "not stopped");
        tokio::task::yield_now().await;
    }
    server.sigcont();
    assert!(create_stream(&server).contains("\"created\""));
    server.sigstop();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn dropped_it_is_dead_and_its_temporary_folder_gone() {
    let server = Server::start(Options::default()).await.unwrap();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    create_stream(&server);
    drop(server);
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

/// Given a program that holds a server, when that program is killed without warning, then its server dies as well.
#[test]
fn it_dies_with_a_holder_that_is_killed() {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_a_server", "--ignored", "--nocapture"])
        .env("HOLD_A_SERVER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let said = lines.find_map(|line| line.unwrap().strip_prefix("holding ").map(str::to_owned)).unwrap();
    let (pid, dir) = said.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    assert!(is_alive(pid));

    holder.kill().unwrap();
    holder.wait().unwrap();

    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "server {pid} outlived its holder");
        std::thread::yield_now();
    }
    std::fs::remove_dir_all(Path::new(dir)).unwrap(); // nobody was left to do it
}

#[tokio::test]
#[ignore = "started, and killed, by it_dies_with_a_holder_that_is_killed"]
async fn hold_a_server() {
    if std::env::var_os("HOLD_A_SERVER").is_none() {
        return; // `cargo test -- --ignored` came by
    }
    let server = Server::start(Options::default()).await.unwrap();
    println!("\nholding {} {}", server.pid().unwrap(), server.dir().display());
    server.ended().await;
}
