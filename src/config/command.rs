//! The settings of commands, `command` in `[defaults]` and `[types.<name>]`: which program does the work of a job.

use std::path::Path;

use super::http_call::Secrets;
use super::kind::{Size, Text};
use super::schema::Field::Setting as One;
use super::schema::{Entry, Table};
use super::section::Section;
use crate::handlers::command_run::CommandRun;

/// The table's name, and that of the handler whose settings it has.
pub(crate) const TABLE: &str = "command";
pub(crate) const HANDLER: &str = "command.run";

/// The exit code that asks for another attempt: `EX_TEMPFAIL` of sysexits.h.
const ANOTHER_ATTEMPT: u16 = 75;

pub(crate) static COMMAND: Table = Table::of(
    "Which program does the jobs of a type with handler = \"command.run\": the payload is its stdin, its stdout the result.",
    &[One(&PROGRAM), One(&ARGS), One(&ENV), One(&DIR), One(&MAX_OUTPUT), One(&PERMANENT_EXIT)],
)
.optional();

pub(crate) static PROGRAM: Entry<Option<Text>> =
    Entry::new("program", || None, "The program, by its whole path. No shell reads it.")
        .example("\"/usr/bin/convert\"");

pub(crate) static ARGS: Entry<Vec<Text>> =
    Entry::new("args", Vec::new, "Its arguments.").example("[\"-\", \"-resize\", \"200x200\", \"png:-\"]");

pub(crate) static ENV: Entry<Secrets> = Entry::new(
    "env",
    Secrets::default,
    "Its variables, written as headers of http are. Of the node's own it has none.",
)
.example("{ PATH = \"/usr/bin:/bin\" }");

pub(crate) static DIR: Entry<Option<Text>> =
    Entry::new("dir", || None, "The folder that it works in; the node's own, if nothing is set.").example("\"/tmp\"");

pub(crate) static MAX_OUTPUT: Entry<Size> =
    Entry::new("max_output", || Size(64 << 10), "How much of its stdout is the result; the rest is dropped.")
        .at_least(|| Size(1))
        .at_most(|| Size(64 << 10));

pub(crate) static PERMANENT_EXIT: Entry<Vec<u16>> = Entry::new(
    "permanent_exit",
    Vec::new,
    "Exit codes that fail a job for good. All others but 0 are worth another attempt.",
)
.example("[64, 65]");

/// The handler that the table describes.
///
/// # Errors
/// The setting that is wrong, and why.
pub(super) fn read(section: &Section<'_>) -> Result<CommandRun, (&'static str, String)> {
    let Some(Text(program)) = section.get(&PROGRAM) else {
        return Err((PROGRAM.name, "is missing".to_owned()));
    };
    if !Path::new(&program).is_absolute() {
        return Err((PROGRAM.name, format!("{program:?} is not a whole path, such as \"/usr/bin/convert\"")));
    }
    if !Path::new(&program).is_file() {
        return Err((PROGRAM.name, format!("there is no file {program:?}")));
    }
    let args: Vec<String> = section.get(&ARGS).into_iter().map(|arg| arg.0).collect();
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err((ARGS.name, "no argument can have a zero byte".to_owned()));
    }
    let origin = section.origin(ENV.name).map(|(_, origin)| origin);
    let env = section.get(&ENV).texts(origin).map_err(|reason| (ENV.name, reason))?;
    for (name, text) in &env {
        if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
            return Err((ENV.name, format!("{name:?} is no name of a variable, or its value has a zero byte")));
        }
    }
    let dir = section.get(&DIR).map(|dir| dir.0);
    if let Some(dir) = dir.as_ref().filter(|dir| !Path::new(dir).is_dir()) {
        return Err((DIR.name, format!("there is no folder {dir:?}")));
    }
    let permanent = section.get(&PERMANENT_EXIT);
    if let Some(code) = permanent.iter().find(|code| !(1..=255).contains(*code) || **code == ANOTHER_ATTEMPT) {
        let reason = format!("{code} is not an exit code from 1 to 255; {ANOTHER_ATTEMPT} asks for another attempt");
        return Err((PERMANENT_EXIT.name, reason));
    }
    let max_output = usize::try_from(section.get(&MAX_OUTPUT).0).unwrap_or(usize::MAX);
    Ok(CommandRun::new(program, args).with_env(env).within(dir).cut_at(max_output).permanent(permanent))
}
