//! What a node's `/metrics` says, read as Prometheus reads it.

use std::collections::BTreeMap;

use crate::http;
use crate::node::Node;

/// One answer of `/metrics`: every series with its value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scrape(Vec<Series>);

/// A series.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its labels; one without a value is as good as absent.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Scrape {
    /// Asks a node.
    ///
    /// # Panics
    /// If it does not answer with metrics.
    pub async fn of(node: &Node) -> Scrape {
        let page =
            http::get(node.http(), "/metrics").await.unwrap_or_else(|error| panic!("{}: {error:#}", node.name()));
        assert_eq!(page.status, 200, "{}", page.body);
        Scrape::read(&page.body)
    }

    /// Reads the text format.
    ///
    /// # Panics
    /// If a line is neither a comment nor a series.
    pub fn read(text: &str) -> Scrape {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Scrape(lines.map(|line| series(line).unwrap_or_else(|| panic!("not a series: {line:?}"))).collect())
    }

    /// Every series.
    pub fn series(&self) -> &[Series] {
        &self.0
    }

    /// The sum over all series of that name that have these labels; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |series: &&Series| {
            series.name == name
                && labels.iter().all(|(label, value)| series.labels.get(*label).is_some_and(|found| found == value))
        };
        self.0.iter().filter(fits).map(|series| series.value).sum()
    }

    /// The value of the only series that has exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: BTreeMap<String, String> =
            labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
        let mut fits = self.0.iter().filter(|series| series.name == name && series.labels == wanted);
        let found = fits.next().map(|series| series.value);
        assert!(fits.next().is_none(), "{name} {labels:?} is there twice");
        found
    }
}

/// `name{label="value",…} value`
fn series(line: &str) -> Option<Series> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, mut rest) = head.split_once('{').unwrap_or((head, "}"));
    let mut labels = BTreeMap::new();
    while rest != "}" {
        let (label, after) = rest.split_once("=\"")?;
        let (mut text, mut escaped, mut end) = (String::new(), false, None);
        for (at, c) in after.char_indices() {
            match (escaped, c) {
                (false, '\\') => escaped = true,
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (true, 'n') => (text, escaped) = (text + "\n", false),
                (_, c) => {
                    text.push(c);
                    escaped = false;
                }
            }
        }
        if !text.is_empty() {
            labels.insert(label.to_owned(), text);
        }
        rest = &after[end? + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(Series { name: name.to_owned(), labels, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_with_their_labels() {
        let text =
            "# HELP a b\n# TYPE a counter\na 3\nb{x=\"1\",y=\"a \\\"b\\\" {c},\\\\\"} 2.5\nb{x=\"1\",y=\"\"} 1\n";
        let scrape = Scrape::read(text);
        assert_eq!(scrape.value("a", &[]), Some(3.0));
        assert_eq!(scrape.value("b", &[("x", "1"), ("y", "a \"b\" {c},\\")]), Some(2.5));
        assert_eq!(scrape.value("b", &[("x", "1")]), Some(1.0));
        assert!((scrape.sum("b", &[("x", "1")]) - 3.5).abs() < 1e-9);
        assert_eq!(scrape.value("c", &[]), None);
    }

    #[test]
    #[should_panic(expected = "not a series: \"a b c\"")]
    fn what_is_no_series_is_refused() {
        Scrape::read("a b c\n");
    }
}
