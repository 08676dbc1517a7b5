//! `longshore permissions`: prints what a user of NATS may do in a role, for the server's configuration.
//!
//! A node's rights are those that `doctor` looks for; the others lie in files here, with words in capitals for names.

use clap::{Args, ValueEnum};
use longshore_backbone::inspect::USER_INFO;
use longshore_backbone::wire::api::{ENDPOINTS, Effect};
use longshore_backbone::wire::subject::Names;
use longshore_domain::policy::Policies;

use super::{Ended, File, Global, Usage, output};

#[derive(Debug, Args)]
pub(crate) struct PermissionsArguments {
    /// What the user is there for; of producers and handlers --tenant says whose they are
    role: Role,
    #[command(flatten)]
    file: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Node,
    Gateway,
    Operator,
    Observer,
    Producer,
    Handler,
}

/// Prints it in the form that stands between the braces of `permissions`.
pub(crate) fn run(global: &Global, arguments: &PermissionsArguments) -> anyhow::Result<Ended> {
    let PermissionsArguments { role, file } = arguments;
    let configuration = file.load(global)?;
    let tenant = global.tenant.as_str();
    if tenant.starts_with('_') {
        return Err(Usage("a user has the rights of one tenant: name it by --tenant".to_owned()).into());
    }
    let settings = configuration.settings();
    let names = Names::new(&settings.storage.namespace);
    let granted = match role {
        Role::Node | Role::Gateway => of_a_node(&names, &settings.policies, tenant),
        Role::Operator => filled_in(include_str!("permissions/operator.conf"), &names, *role, tenant),
        Role::Observer => filled_in(include_str!("permissions/observer.conf"), &names, *role, tenant),
        Role::Producer => filled_in(include_str!("permissions/producer.conf"), &names, *role, tenant),
        Role::Handler => filled_in(include_str!("permissions/handler.conf"), &names, *role, tenant),
    };
    output::say(&format!("# The inbox prefix of its programs: {}\n{}", inbox(*role, tenant), granted.trim_end()))?;
    Ok(Ended::Success)
}

/// Where answers come. No tenant's name begins with `_`, so none reads those of an operator.
fn inbox(role: Role, tenant: &str) -> String {
    match role {
        Role::Node | Role::Gateway => "_INBOX".to_owned(),
        Role::Operator => "_INBOX__operator".to_owned(),
        Role::Observer => "_INBOX__observer".to_owned(),
        Role::Producer | Role::Handler => format!("_INBOX_{tenant}"),
    }
}

/// A node answers all others.
fn of_a_node(names: &Names, policies: &Policies, tenant: &str) -> String {
    let (mut publish, subscribe) = names.rights_of_a_node(policies.queues.keys());
    // By which doctor, which the dashboard shows, learns what the node may do.
    publish.push(USER_INFO.to_owned());
    let mut inboxes = vec![inbox(Role::Operator, ""), inbox(Role::Observer, ""), inbox(Role::Producer, tenant)];
    let others = policies.tenants.keys().map(|other| inbox(Role::Producer, other.as_str()));
    inboxes.extend(others.filter(|other| *other != inbox(Role::Producer, tenant)));
    publish.extend(inboxes.iter().map(|prefix| format!("{prefix}.>")));
    format!("publish: [\n{}]\nsubscribe: [\n{}]", lines(&publish), lines(&subscribe))
}

fn filled_in(file: &str, names: &Names, role: Role, tenant: &str) -> String {
    let reads = ENDPOINTS.iter().filter(|endpoint| endpoint.effect == Effect::Reads);
    let reads: Vec<String> = reads.map(|endpoint| format!("NAMESPACE.api.*.{}", endpoint.name)).collect();
    let words = [
        ("READS", lines(&reads)),
        ("EVENTS", names.events_stream()),
        ("NAMESPACE", names.namespace().to_owned()),
        ("TENANT", tenant.to_owned()),
    ];
    // The tenant's name comes last, so that it is taken for none of these words.
    let file = file.replace("INBOX", &inbox(role, "TENANT"));
    words.iter().fold(file, |text, (word, name)| text.replace(word, name))
}

fn lines(subjects: &[String]) -> String {
    subjects.iter().map(|subject| format!("  \"{subject}\"\n")).collect()
}
