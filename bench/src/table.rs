//! Figures as text: tables in Markdown, and the spread of several runs.

/// A table that is printed row by row, as the rows come in.
#[derive(Debug)]
pub(crate) struct Table {
    columns: usize,
}

impl Table {
    /// Prints the head.
    pub(crate) fn new(heads: &[&str]) -> Table {
        println!("\n| {} |", heads.join(" | "));
        println!("|{}", "---|".repeat(heads.len()));
        Table { columns: heads.len() }
    }

    /// Prints a row.
    pub(crate) fn row(&self, cells: &[String]) {
        debug_assert_eq!(cells.len(), self.columns, "a row has as many cells as the head");
        println!("| {} |", cells.join(" | "));
    }
}

/// Minimum, median and maximum; for an even number of values, the upper one of the two in the middle.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let values = sorted(values);
    match (values.first(), median(&values), values.last()) {
        (Some(least), Some(median), Some(most)) => {
            format!("{} / {} / {}", number(*least, digits), number(median, digits), number(*most, digits))
        }
        _ => "–".to_owned(),
    }
}

/// The median; for an even number of values, the upper one of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    sorted(values).get(values.len() / 2).copied()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// A number with commas between thousands.
pub(crate) fn number(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(rest) = rest {
        grouped.push('.');
        grouped.push_str(rest);
    }
    grouped
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    number(bytes as f64 / f64::from(1 << 20), 1)
}

/// A figure to three digits or so.
pub(crate) fn figure(value: f64) -> String {
    number(value, digits(value))
}

pub(crate) fn digits(value: f64) -> usize {
    match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(number(1_234_567.891, 1), "1,234,567.9");
        assert_eq!((number(999.0, 0), number(-1_000.0, 0)), ("999".to_owned(), "-1,000".to_owned()));
    }

    #[test]
    fn the_spread_is_sorted() {
        assert_eq!(spread(&[3.0, 1.0, 2.0], 0), "1 / 2 / 3");
        assert_eq!(spread(&[], 0), "–");
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (Some(2.0), None));
    }

    #[test]
    fn figures_have_as_many_digits_as_they_are_worth() {
        assert_eq!([0.3333, 12.345, 26_500.4].map(figure), ["0.33", "12.3", "26,500"]);
    }
}
