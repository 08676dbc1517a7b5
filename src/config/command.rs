//! The settings of commands, `command` in `[defaults]` and `[types.<name>]`: which program does the work of a job.

use std::path::Path;

use super::http_call::Secrets;
use super::kind::{Size, Text};
use super::section::{Section, settings};
use crate::handlers::command_run::CommandRun;

/// The table's name, and that of the handler whose settings it has.
pub(crate) const TABLE: &str = "command";
pub(crate) const HANDLER: &str = "command.run";

/// The exit code that asks for another attempt: `EX_TEMPFAIL` of sysexits.h.
const ANOTHER_ATTEMPT: u16 = 75;

settings! {
    /// Which program does the jobs of a type with handler = "command.run": the payload is its stdin, its stdout the
    /// result.
    COMMAND: CommandEntries, COMMAND_TABLE.optional();

    /// The program, by its whole path. No shell reads it.
    program: Option<Text>, example("\"/usr/bin/convert\"");
    /// Its arguments.
    args: Vec<Text>, example("[\"-\", \"-resize\", \"200x200\", \"png:-\"]");
    /// Its variables, written as headers of http are. Of the node's own it has none.
    env: Secrets, example("{ PATH = \"/usr/bin:/bin\" }");
    /// The folder that it works in; the node's own, if nothing is set.
    dir: Option<Text>, example("\"/tmp\"");
    /// How much of its stdout is the result; the rest is dropped.
    max_output: Size = Size(64 << 10), at_least(|| Size(1)), at_most(|| Size(64 << 10));
    /// Exit codes that fail a job for good. All others but 0 are worth another attempt.
    permanent_exit: Vec<u16>, example("[64, 65]");
}

/// The handler that the table describes, or the setting that is wrong, and why.
pub(super) fn read(section: &Section<'_>) -> Result<CommandRun, (&'static str, String)> {
    let Some(Text(program)) = section.get(&COMMAND.program) else {
        return Err((COMMAND.program.name, "is missing".to_owned()));
    };
    if !Path::new(&program).is_absolute() {
        return Err((COMMAND.program.name, format!("{program:?} is not a whole path, such as \"/usr/bin/convert\"")));
    }
    if !Path::new(&program).is_file() {
        return Err((COMMAND.program.name, format!("there is no file {program:?}")));
    }
    let args: Vec<String> = section.get(&COMMAND.args).into_iter().map(|arg| arg.0).collect();
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err((COMMAND.args.name, "no argument can have a zero byte".to_owned()));
    }
    let origin = section.origin(COMMAND.env.name).map(|(_, origin)| origin);
    let env = section.get(&COMMAND.env).texts(origin).map_err(|reason| (COMMAND.env.name, reason))?;
    for (name, text) in &env {
        if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
            return Err((COMMAND.env.name, format!("{name:?} is no name of a variable, or its value has a zero byte")));
        }
    }
    let dir = section.get(&COMMAND.dir).map(|dir| dir.0);
    if let Some(dir) = dir.as_ref().filter(|dir| !Path::new(dir).is_dir()) {
        return Err((COMMAND.dir.name, format!("there is no folder {dir:?}")));
    }
    let permanent = section.get(&COMMAND.permanent_exit);
    if let Some(code) = permanent.iter().find(|code| !(1..=255).contains(*code) || **code == ANOTHER_ATTEMPT) {
        let reason = format!("{code} is not an exit code from 1 to 255; {ANOTHER_ATTEMPT} asks for another attempt");
        return Err((COMMAND.permanent_exit.name, reason));
    }
    let max_output = usize::try_from(section.get(&COMMAND.max_output).0).unwrap_or(usize::MAX);
    Ok(CommandRun { program, args, env, dir, max_output, permanent })
}
