//! `longshore keys`: makes, lists and revokes the keys of clients that ask over HTTP.

use std::time::Duration;

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    CreateKeyRequest, Encoded, KeyCreated, KeyStatus, Keys, KeysCreate, KeysList, KeysRevoke, Nothing,
    RevokeKeyRequest, Scope, id_of_key,
};
use longshore_domain::{Timestamp, duration};

use super::client::Api;
use super::output;
use super::target::now;
use super::{Ended, Global, Lists};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The keys: for whom, with which permissions, until when (operators)
    List {
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Make a key for --tenant, or with --tenant _all for the operator; it is printed this once (operators)
    Create(CreateArguments),
    /// Revoke a key: within two seconds no node takes it any more (operators)
    Revoke(RevokeArguments),
}

impl Lists for Command {
    fn list(json: bool) -> Self {
        Self::List { json }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// Whose key it is, for people
    #[arg(value_name = "NAME")]
    name: String,
    /// submit, read, operate or reveal; several with commas
    #[arg(long, value_name = "SCOPES", value_delimiter = ',', required = true, value_parser = scope)]
    scopes: Vec<Scope>,
    /// After so long it is refused
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeArguments {
    /// The id of the key
    #[arg(value_name = "ID")]
    id: String,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

fn scope(text: &str) -> Result<Scope, String> {
    serde_json::from_value(text.into()).map_err(|_| "is not submit, read, operate or reveal".to_owned())
}

pub(crate) async fn run(global: &Global, command: Command) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        Command::List { json } => list(&api.ask::<KeysList>(Nothing {}).await?, json)?,
        Command::Create(CreateArguments { name, scopes, expires_in, json }) => {
            let expires_at = expires_in.map(|span| now().plus(span));
            let request = CreateKeyRequest { name, tenant: global.tenant.clone(), scopes, expires_at };
            let answer: Encoded<KeyCreated> = api.ask::<KeysCreate>(request).await?;
            if json {
                output::json(&answer)?;
            } else {
                output::say(&answer.read()?.key)?;
            }
        }
        Command::Revoke(RevokeArguments { id, json }) => {
            // Who gives the whole key here is not to send its secret.
            let id = id_of_key(&id).map_or_else(|| id.clone(), str::to_owned);
            let answer = api.ask::<KeysRevoke>(RevokeKeyRequest { id }).await?;
            if json {
                output::json(&answer)?;
            } else {
                let KeyStatus { id, name, .. } = answer.read()?;
                output::say(&format!("revoked {id} ({name})"))?;
            }
        }
    }
    Ok(Ended::Success)
}

fn list(answer: &Encoded<Keys>, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(answer);
    }
    let heading = ["id", "name", "tenant", "scopes", "expires", "last used"].map(str::to_owned).to_vec();
    let keys = answer.read()?.keys.into_iter().map(|key| row(key, now()));
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(keys).collect();
    output::say(output::table(&rows, &[]).trim_end())
}

fn row(key: KeyStatus, now: Timestamp) -> Vec<String> {
    let scopes: Vec<String> = key.scopes.iter().map(ToString::to_string).collect();
    let expires = match key.expires_at {
        None => "never".to_owned(),
        Some(at) if at <= now => "expired".to_owned(),
        Some(at) => format!("in {}", output::span(now, at)),
    };
    vec![key.id, key.name, key.tenant, scopes.join(","), expires, key.last_used.unwrap_or_else(|| "never".to_owned())]
}
