//! `longshore why`: what happened to one run in plain words, as a node says it.

use std::time::Duration;

use clap::Args;
use longshore_backbone::wire::api::{Record, RunsWhy, WaitRequest, WhyLine};
use longshore_domain::run::whole_millis;
use longshore_domain::{RunId, Timestamp};

use super::client::Api;
use super::output::{self, FAINT, STRONG, style_of, styled};
use super::target::within;
use super::{Ended, Global};

#[derive(Debug, Args)]
pub(crate) struct WhyArguments {
    /// The run's id
    #[arg(value_parser = super::name::<RunId>)]
    id: RunId,
    /// Read the event log for this long at most, up to 30s
    #[arg(long, value_name = "DURATION", default_value = "400ms", value_parser = within("0s", "30s"))]
    within: Duration,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, WhyArguments { id, within, json }: WhyArguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let asked = WaitRequest { run_id: id, tenant: None, timeout_ms: Some(whole_millis(within)) };
    api.show_within::<RunsWhy>(asked, within, json, |why| output::say(shown(&why.run, &why.lines).trim_end())).await
}

fn shown(record: &Record, lines: &[WhyLine]) -> String {
    let state = output::cut(&record.state.to_string(), 40);
    let mut out = format!(
        "{}  {}  {}\n",
        styled(record.run_id.as_str(), STRONG, 0),
        record.job_type,
        styled(&state, style_of(&state), 0)
    );
    out += &record.trace_id.map(|trace| format!("trace {trace}\n")).unwrap_or_default();
    out += "\n";
    let mut before: Option<Timestamp> = None;
    for WhyLine { at, text } in lines {
        let text = output::plain(text);
        match *at {
            Some(at) => {
                let after = before.map(|before| format!("+{}", output::span(before, at))).unwrap_or_default();
                out += &format!("{}  {after:>13}  {text}\n", styled(&at.to_string(), FAINT, 0));
            }
            None if before.is_some() => out += &format!("\n{text}\n"),
            None => out += &format!("{text}\n"),
        }
        before = *at;
    }
    out
}
