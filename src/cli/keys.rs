//! `longshore keys`: makes, lists and revokes the keys of clients that ask over HTTP.

use std::time::Duration;

use clap::Subcommand;
use longshore_backbone::wire::api::{
    CreateKeyRequest, KeyStatus, Keys, KeysCreate, KeysList, KeysRevoke, Nothing, RevokeKeyRequest, Scope, id_of_key,
};
use longshore_domain::{Timestamp, duration};

use super::client::Api;
use super::output;
use super::target::{now, one_of};
use super::{Ended, Global, Json};

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// The keys: for whom, with which permissions, until when (operators)
    List(Json),
    /// Make a key for --tenant, or with --tenant _all for the operator; it is printed this once (operators)
    Create {
        /// Whose key it is, for people
        #[arg(value_name = "NAME")]
        name: String,
        /// submit, read, operate or reveal; several with commas
        #[arg(long, value_name = "SCOPES", value_delimiter = ',', required = true, value_parser = one_of::<Scope>("is not submit, read, operate or reveal"))]
        scopes: Vec<Scope>,
        /// After so long it is refused
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        expires_in: Option<Duration>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key: within two seconds no node takes it any more (operators)
    Revoke {
        /// The id of the key
        #[arg(value_name = "ID")]
        id: String,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(global: &Global, command: KeysCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        KeysCommand::List(Json { json }) => {
            let shown = |Keys { keys }| {
                let heading = ["id", "name", "tenant", "scopes", "expires", "last used"];
                output::say_table(&output::rows(heading, keys.into_iter().map(|key| row(key, now()))), &[])
            };
            api.show::<KeysList>(Nothing {}, json, shown).await
        }
        KeysCommand::Create { name, scopes, expires_in, json } => {
            let expires_at = expires_in.map(|span| now().plus(span));
            let request = CreateKeyRequest { name, tenant: global.tenant.clone(), scopes, expires_at };
            api.show::<KeysCreate>(request, json, |created| output::say(&created.key)).await
        }
        KeysCommand::Revoke { id, json } => {
            // Who gives the whole key here is not to send its secret.
            let id = id_of_key(&id).map_or_else(|| id.clone(), str::to_owned);
            let shown = |KeyStatus { id, name, .. }| output::say(&format!("revoked {id} ({name})"));
            api.show::<KeysRevoke>(RevokeKeyRequest { id }, json, shown).await
        }
    }
}

fn row(key: KeyStatus, now: Timestamp) -> [String; 6] {
    let scopes: Vec<String> = key.scopes.iter().map(ToString::to_string).collect();
    let expires = match key.expires_at {
        None => "never".to_owned(),
        Some(at) if at <= now => "expired".to_owned(),
        Some(at) => format!("in {}", output::age(now, at)),
    };
    [key.id, key.name, key.tenant, scopes.join(","), expires, key.last_used.unwrap_or_else(|| "never".to_owned())]
}
