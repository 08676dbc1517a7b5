//! How commands end: exit codes, and errors as the user reads them.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Success,
    Failure,
    RunNotCompleted,
    TimedOut,
    /// There are warnings, and no failure.
    Warned,
    /// A part of the node kept dying.
    RestartLimit,
    /// The command line is wrong in a way that only shows while the command runs.
    Usage,
}

impl From<Ended> for ExitCode {
    fn from(ended: Ended) -> Self {
        Self::from(match ended {
            Ended::Success => 0,
            Ended::Failure => 1,
            Ended::Usage => 2,
            Ended::RunNotCompleted | Ended::Warned => 3,
            Ended::TimedOut => 4,
            Ended::RestartLimit => 70, // EX_SOFTWARE of sysexits.h: an internal error
        })
    }
}

/// An argument that is wrong in a way the parser cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// An error with its causes, each named once: some libraries repeat the cause's text in their own.
pub(crate) fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.as_str() {
            "" => text = cause,
            before if before.ends_with(&cause) => {}
            _ => text = format!("{text}: {cause}"),
        }
    }
    text
}

pub(crate) fn exit_code_of(error: &anyhow::Error) -> Ended {
    let gave_up = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(longshore_actors::Error::GaveUp(_))));
    match (error.is::<Usage>(), gave_up) {
        (true, _) => Ended::Usage,
        (false, true) => Ended::RestartLimit,
        (false, false) => Ended::Failure,
    }
}
