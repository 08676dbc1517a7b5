//! Handlers of the node that a table of a type describes, and what a mistake in such a table is.

use longshore_actors::Handlers;

use super::entries::HANDLER;
use super::http_call;
use super::problem::Problem;
use super::section::Section;

/// The tables, each with the handler whose settings it has.
const TABLES: [(&str, &str); 1] = [(http_call::TABLE, http_call::HANDLER)];

/// Adds the handler that the type's table describes; its name. `None`: there is no such table. No type has such a name,
/// so only those that are given the handler have it.
///
/// # Errors
/// What is wrong in the table.
pub(super) fn add(handlers: &mut Handlers, name: &str, section: &Section<'_>) -> Option<Result<String, Problem>> {
    let (table, _) = TABLES.iter().find(|(_, handler)| *handler == name)?;
    let table = section.table(table);
    table.tree?;
    let own = format!("{name} of {}", section.key());
    let before = std::mem::take(handlers);
    let (after, problem) = match name {
        #[cfg(feature = "http")]
        http_call::HANDLER => match http_call::read(&table) {
            Ok(handler) => (before.with(own.clone(), handler), None),
            Err(wrong) => (before, Some(wrong)),
        },
        _ => (before, None),
    };
    *handlers = after;
    Some(problem.map_or(Ok(own), |(name, reason)| Err(table.problem(name, reason))))
}

/// A table whose handler the type does not have is a mistake, unless it has the table from [defaults].
pub(super) fn without_handler(section: &Section<'_>) -> Option<Problem> {
    let handler = section.get(&HANDLER).map(|name| name.0);
    let is_idle = |(table, of): &&(&str, &str)| {
        section.origin(table).is_some_and(|(own, _)| own) && handler.as_deref() != Some(of)
    };
    let (table, of) = TABLES.iter().find(is_idle)?;
    Some(section.problem(table, format!("has no meaning without handler = {of:?}")))
}
