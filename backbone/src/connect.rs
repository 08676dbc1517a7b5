//! Connections to NATS, set so that a silent or restarted server is noticed within seconds.
//!
//! A node has two: one for jobs, records and events, one for control (leases, API), so that a busy read loop cannot
//! starve the leases.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};
use tokio::sync::watch;

use crate::error::{Cause, Error};
use crate::settings::Connection;

/// The oldest server that will do: from here on clients cannot keep or move a schedule by forged headers.
const NEEDED: (i64, i64, i64) = (2, 14, 5);
const NEEDED_TEXT: &str = "2.14.5";

/// With the client's default of 60 s a silent server goes unnoticed for minutes.
const PING_EVERY: Duration = Duration::from_secs(2);

/// How long one request may take before it counts as unanswered.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A connection, and how often it was (re)made.
#[derive(Debug, Clone)]
pub struct Link {
    /// The client.
    pub client: Client,
    /// Counts connections: a change means that the server may have forgotten what it was asked.
    pub connected: watch::Receiver<u64>,
}

impl Link {
    /// Connects under `name`, which the server shows in its lists of connections.
    ///
    /// # Errors
    /// The server cannot be reached, refuses the credentials, or is too old.
    pub async fn open(connection: &Connection, name: &str) -> Result<Self, Error> {
        // TLS asks for a process-wide provider; an embedding program may have set one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (count, connected) = watch::channel(0u64);
        let count = Arc::new(count);
        let options = options(connection)?
            .name(name)
            .ping_interval(PING_EVERY)
            .connection_timeout(Duration::from_secs(5))
            .request_timeout(Some(ANSWER_WITHIN))
            .max_reconnects(None)
            .reconnect_delay_callback(|attempt| Duration::from_millis(50 * (attempt as u64).min(10)))
            .event_callback(move |event| {
                let count = Arc::clone(&count);
                async move { note(&event, &count) }
            });
        let refused = |source: Cause| Error::Connect { url: connection.url.clone(), source };
        let addresses: Vec<&str> = connection.url.split(',').map(str::trim).collect();
        let client = options.connect(addresses).await.map_err(|error| refused(Box::new(error)))?;
        let info = client.server_info();
        if !is_new_enough(&info.version) {
            return Err(Error::ServerTooOld { found: info.version, needed: NEEDED_TEXT });
        }
        Ok(Self { client, connected })
    }
}

fn note(event: &Event, count: &watch::Sender<u64>) {
    match event {
        Event::Connected => {
            tracing::info!("connected to NATS");
            count.send_modify(|count| *count += 1);
        }
        Event::Disconnected => tracing::warn!("lost the connection to NATS; trying again"),
        Event::SlowConsumer(id) => tracing::warn!(subscription = id, "messages were dropped: this node is too slow"),
        other => tracing::info!("NATS: {other}"),
    }
}

/// Compares `2.15.1`, `2.14.5-RC.1` and the like with what is needed.
fn is_new_enough(version: &str) -> bool {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    let mut numbers = release.split('.').map(|number| number.parse::<i64>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= NEEDED
}

fn options(connection: &Connection) -> Result<ConnectOptions, Error> {
    let unusable = |path: &std::path::Path, source: Cause| Error::File { path: path.display().to_string(), source };
    let mut options = ConnectOptions::new();
    if let Some(path) = &connection.creds {
        let text = std::fs::read_to_string(path).map_err(|error| unusable(path, Box::new(error)))?;
        options = options.credentials(&text).map_err(|error| unusable(path, Box::new(error)))?;
    } else if let Some(path) = &connection.nkey {
        let seed = std::fs::read_to_string(path).map_err(|error| unusable(path, Box::new(error)))?;
        options = options.nkey(seed.trim().to_owned());
    } else if let Some(user) = &connection.user {
        options = options.user_and_password(user.clone(), connection.password.clone().unwrap_or_default());
    } else if let Some(token) = &connection.token {
        options = options.token(token.clone());
    }
    if let Some(path) = &connection.ca {
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let (Some(cert), Some(key)) = (&connection.cert, &connection.key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for new in ["2.14.5", "2.15.1", "2.15.0-RC.1", "3.0.0"] {
            assert!(is_new_enough(new), "{new}");
        }
        for old in ["2.14.4", "2.9.25", "2.10.0", "", "x"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }
}
