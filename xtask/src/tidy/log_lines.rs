//! Every line of the log that names a run says all that a reader needs to find the rest: run, tenant, attempt and
//! trace.

use super::files::File;

/// The crates whose lines go into a node's log.
const NODE: [&str; 3] = ["actors/src/", "backbone/src/", "src/"];
const FIELDS: [&str; 3] = ["tenant", "attempt", "trace_id"];

/// Lines that name a run and lack something.
pub(super) fn breaches(file: &File) -> Vec<String> {
    if !file.is_rust() || !NODE.iter().any(|room| file.path.starts_with(room)) {
        return Vec::new();
    }
    let lines: Vec<&str> = file.lines_without_tests().map(|(_, line)| line).collect();
    let mut found = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| is_start(line)) {
        // The statement, without its text.
        let end = (at..lines.len()).find(|line| lines[*line].contains(");")).unwrap_or(at);
        let statement = lines[at..=end].join(" ");
        let fields = statement.split('"').next().unwrap_or_default();
        let missing: Vec<&str> = FIELDS.into_iter().filter(|field| !fields.contains(field)).collect();
        if fields.contains("run_id") && !missing.is_empty() {
            found.push(format!("{}:{}: a log line that names a run lacks {}", file.path, at + 1, missing.join(", ")));
        }
    }
    found
}

fn is_start(line: &str) -> bool {
    ["error", "warn", "info", "debug", "trace"].iter().any(|level| line.contains(&format!("tracing::{level}!(")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_names_a_run_names_all_of_it() {
        let file = |text: &str| File { path: "actors/src/a.rs".to_owned(), text: text.to_owned() };
        let whole = "tracing::warn!(run_id = %r, %tenant, attempt = 1,\n    trace_id = t, \"x\");\n";
        assert!(breaches(&file(whole)).is_empty());
        assert!(breaches(&file("tracing::warn!(%tenant, \"a job's run_id\");\n")).is_empty(), "it names none");
        let found = breaches(&file("\ntracing::debug!(\n    %run_id,\n    %tenant, \"trace_id\"\n);\n"));
        assert_eq!(found, ["actors/src/a.rs:2: a log line that names a run lacks attempt, trace_id"]);
    }
}
