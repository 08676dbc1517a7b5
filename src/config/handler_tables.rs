//! Handlers of the node that a table of a type describes, and what a mistake in such a table is.

use longshore_actors::Handlers;

use super::entries::TYPE;
use super::problem::Problem;
use super::section::Section;
use super::{command, email, http_call};

/// The tables, each with the handler whose settings it has.
const TABLES: [(&str, &str); 2] = [(http_call::TABLE, http_call::HANDLER), (command::TABLE, command::HANDLER)];
/// Handlers that there are only as a table describes them.
#[cfg(feature = "email")]
pub(super) const DECLARED: [&str; 2] = [command::HANDLER, email::HANDLER];
#[cfg(not(feature = "email"))]
pub(super) const DECLARED: [&str; 1] = [command::HANDLER];

/// Adds the handler that the type's table describes; its name. `None`: there is no such table, and it needs none. No
/// type has such a name, so only those that are given the handler have it.
pub(super) fn add(handlers: &mut Handlers, name: &str, section: &Section<'_>) -> Option<Result<String, Problem>> {
    if name == email::HANDLER && handlers.get(name).is_none() {
        return Some(Err(section.problem(TYPE.handler.name, format!("{name:?} needs email.server"))));
    }
    let (table, _) = TABLES.iter().find(|(_, handler)| *handler == name)?;
    let table = section.table(table);
    if table.tree.is_none() {
        let reason = format!("{name:?} needs the type's table {table}", table = table.key());
        return DECLARED.contains(&name).then(|| Err(section.problem(TYPE.handler.name, reason)));
    }
    let own = format!("{name} of {}", section.key());
    let there = handlers.clone();
    let made = match name {
        #[cfg(feature = "http")]
        http_call::HANDLER => http_call::read(&table).map(|handler| there.with(own.clone(), handler)),
        command::HANDLER => command::read(&table).map(|handler| there.with(own.clone(), handler)),
        _ => return None,
    };
    Some(match made {
        Ok(made) => {
            *handlers = made;
            Ok(own)
        }
        Err((name, reason)) => Err(table.problem(name, reason)),
    })
}

/// Adds the handler that `[email]` describes, if a server is set there and the program has none of its own; what is
/// wrong there.
#[cfg(feature = "email")]
pub(super) fn add_email(handlers: &mut Handlers, root: &Section<'_>) -> Option<Problem> {
    match email::read(root) {
        Ok(Some(handler)) if handlers.get(email::HANDLER).is_none() => {
            *handlers = std::mem::take(handlers).with(email::HANDLER, handler);
            None
        }
        made => made.err(),
    }
}

#[cfg(not(feature = "email"))]
pub(super) fn add_email(_: &mut Handlers, _: &Section<'_>) -> Option<Problem> {
    None
}

/// A table whose handler the type does not have is a mistake, unless it has the table from [defaults].
pub(super) fn without_handler(section: &Section<'_>) -> Option<Problem> {
    let handler = section.get(&TYPE.handler).map(|name| name.0);
    let is_idle = |(table, of): &&(&str, &str)| {
        section.origin(table).is_some_and(|(own, _)| own) && handler.as_deref() != Some(of)
    };
    let (table, of) = TABLES.iter().find(is_idle)?;
    Some(section.problem(table, format!("has no meaning without handler = {of:?}")))
}
