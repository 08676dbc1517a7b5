//! `longshore webhooks`: makes, changes, tries and removes webhooks.

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    PutWebhookRequest, WebhookFormat, WebhookRequest, WebhookSecret, WebhookStatus, Webhooks, WebhooksDelete,
    WebhooksGet, WebhooksList, WebhooksPut, WebhooksRequest, WebhooksRotate, WebhooksTest,
};
use longshore_domain::WebhookId;

use super::client::Api;
use super::output;
use super::target::one_of;
use super::{Ended, Global, Json, One};

#[derive(Debug, Subcommand)]
pub(crate) enum WebhooksCommand {
    /// The webhooks of --tenant, or with --tenant _all of all
    List(Json),
    /// One webhook
    Get(One<WebhookId>),
    /// Make a webhook, or change the one of that id; a secret that is made for it is printed this once
    Put(Box<PutArguments>),
    /// Deliver nothing until it is resumed; its events wait in the log
    Pause(One<WebhookId>),
    /// Deliver again, from where it stopped
    Resume(One<WebhookId>),
    /// Deliver an event of the type webhook.test, once
    Test(One<WebhookId>),
    /// Make a new secret, which is printed this once; the old one signs, too, for a day
    Rotate(One<WebhookId>),
    /// Remove a webhook
    Delete(One<WebhookId>),
}

#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    #[command(flatten)]
    one: One<WebhookId>,
    /// Where events are posted to
    #[arg(value_name = "URL")]
    url: String,
    /// Which events, such as completed,dlq; all by default
    #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
    events: Vec<String>,
    /// Of which types; email.> are all that begin with email.
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Vec<String>,
    /// Of which queues
    #[arg(long, value_name = "QUEUES", value_delimiter = ',')]
    queues: Vec<String>,
    /// standard (as Standard Webhooks has it) or cloudevents
    #[arg(long, value_name = "FORMAT", value_parser = one_of::<WebhookFormat>("is not standard or cloudevents"))]
    format: Option<WebhookFormat>,
    /// A secret of your own: whsec_ and 24 to 64 bytes in base64
    #[arg(long, value_name = "SECRET", value_parser = secret)]
    secret: Option<WebhookSecret>,
}

fn secret(text: &str) -> Result<WebhookSecret, String> {
    let secret: WebhookSecret = serde_json::from_value(text.into()).map_err(|error| error.to_string())?;
    secret.key().map(|_| secret).map_err(str::to_owned)
}

pub(crate) async fn run(global: &Global, command: WebhooksCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let asked = |one: &One<WebhookId>| WebhookRequest { id: one.id.clone(), tenant: None };
    match command {
        WebhooksCommand::List(Json { json }) => api.show::<WebhooksList>(WebhooksRequest::default(), json, list).await,
        WebhooksCommand::Get(one) => api.show::<WebhooksGet>(asked(&one), one.json, shown).await,
        WebhooksCommand::Put(arguments) => {
            let PutArguments { one, url, events, types, queues, format, secret } = *arguments;
            let One { id, json } = one;
            let request =
                PutWebhookRequest { id, tenant: None, url, events, types, queues, format, secret, paused: None };
            api.show::<WebhooksPut>(request, json, shown).await
        }
        WebhooksCommand::Pause(one) => pause(&api, &one, true).await,
        WebhooksCommand::Resume(one) => pause(&api, &one, false).await,
        WebhooksCommand::Test(one) => {
            api.show::<WebhooksTest>(asked(&one), one.json, |test| output::say(test.run_id.as_str())).await
        }
        WebhooksCommand::Rotate(one) => api.show::<WebhooksRotate>(asked(&one), one.json, shown).await,
        WebhooksCommand::Delete(one) => {
            let answer = api.ask::<WebhooksDelete>(asked(&one)).await?;
            output::answer(&answer, one.json, || output::say(&format!("deleted {}", one.id)))
        }
    }
}

/// Puts the webhook as it is, but paused or not.
async fn pause(api: &Api, one: &One<WebhookId>, paused: bool) -> anyhow::Result<Ended> {
    let found = api.ask::<WebhooksGet>(WebhookRequest { id: one.id.clone(), tenant: None }).await?.read()?;
    let WebhookStatus { id, url, events, types, queues, format, .. } = found;
    let format = serde_json::from_value(serde_json::to_value(format)?)?;
    let paused = Some(paused);
    let request = PutWebhookRequest { id, tenant: None, url, events, types, queues, format, secret: None, paused };
    api.show::<WebhooksPut>(request, one.json, shown).await
}

fn list(Webhooks { webhooks }: Webhooks) -> anyhow::Result<()> {
    let rows = webhooks.into_iter().map(|webhook| {
        let events = if webhook.events.is_empty() { "all".to_owned() } else { webhook.events.join(",") };
        [webhook.id.to_string(), webhook.tenant.to_string(), state(webhook.paused), events, webhook.url]
    });
    output::say_table(&output::rows(["id", "tenant", "state", "events", "url"], rows), &[])
}

fn state(paused: bool) -> String {
    if paused { "paused" } else { "on" }.to_owned()
}

fn shown(webhook: WebhookStatus) -> anyhow::Result<()> {
    let mut lines = vec![format!("{} {} {}", webhook.id, state(webhook.paused), webhook.url)];
    lines.extend(webhook.paused_because.map(|reason| format!("paused because {reason}")));
    lines.extend(webhook.secret.map(|secret| format!("secret {}", secret.text())));
    output::say(&lines.join("\n"))
}
