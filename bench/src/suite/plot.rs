//! Bars as SVG, written by hand: a panel for each unit of a scene, and one for processor time.

use std::fmt::Write as _;

use super::legs::{Row, Scene, Side};
use crate::table::{figure, median};

const WIDTH: f64 = 900.0;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 330.0;
const LONGEST: f64 = 340.0;
const BAR: f64 = 24.0;

/// What one bar stands for.
struct Bar<'r> {
    row: &'r Row,
    values: &'r [f64],
    of_bare: Option<f64>,
}

/// The scene as a picture; `caption` says when and where it was measured.
pub(super) fn svg(scene: &Scene, caption: &str) -> String {
    let (mut body, mut y) = (String::new(), 34.0);
    text(&mut body, (16.0, y), "font-size='18' font-weight='600'", &scene.title);
    let mut units: Vec<&str> = Vec::new();
    scene.rows.iter().filter(|row| !row.values.is_empty()).for_each(|row| {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    });
    for unit in units {
        let rows = || scene.rows.iter().filter(|row| row.unit == unit);
        let bars = rows().map(|row| Bar { row, values: &row.values, of_bare: median(&row.of_bare) });
        let better = if unit.contains("/s") || unit.contains("a second") { "more" } else { "less" };
        y = panel(&mut body, y, &format!("{unit} ({better} is better)"), &bars.collect::<Vec<_>>());
        let costly = rows().filter(|row| !row.cpu_micros_per_job.is_empty());
        let bars: Vec<Bar<'_>> =
            costly.map(|row| Bar { row, values: &row.cpu_micros_per_job, of_bare: None }).collect();
        if !bars.is_empty() {
            y = panel(&mut body, y, &format!("CPU µs/job of all processes, for {unit} (less is better)"), &bars);
        }
    }
    y += 12.0;
    for line in [caption, "Bars are medians of the rounds; lines go from the least to the most."] {
        y += 16.0;
        text(&mut body, (16.0, y), "font-size='11' fill='#6b7280'", line);
    }
    let height = y + 14.0;
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' \
         font-family='system-ui, sans-serif' font-size='13' fill='#1f2937'>\n\
         <rect width='100%' height='100%' fill='#ffffff'/>\n{body}</svg>\n"
    )
}

/// Draws bars below `y`, and returns where they end. The line through a bar's end is the spread of the rounds.
fn panel(body: &mut String, y: f64, unit: &str, bars: &[Bar<'_>]) -> f64 {
    let mut y = y + 34.0;
    text(body, (16.0, y), "font-weight='600'", unit);
    y += 10.0;
    let most = bars.iter().flat_map(|bar| bar.values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let at = |value: f64| LEFT + LONGEST * value / most;
    for Bar { row, values, of_bare } in bars {
        let colour = match row.side {
            Side::Bare => "#9ca3af",
            Side::Longshore => "#2563eb",
            Side::Peer => "#d97706",
        };
        let (middle_of, least) = (median(values).unwrap_or(0.0), values.iter().copied().fold(f64::MAX, f64::min));
        let most_of = values.iter().copied().fold(0.0, f64::max);
        let line = y + 16.0;
        text(body, (LEFT - 10.0, line), "text-anchor='end'", &row.leg);
        let (length, centre) = (at(middle_of) - LEFT, y + BAR / 2.0);
        let _ = writeln!(
            body,
            "<rect x='{LEFT}' y='{:.1}' width='{length:.1}' height='{:.1}' fill='{colour}'/>\n\
             <path d='M{:.1} {centre:.1}H{:.1}' stroke='#111827'/>",
            y + 3.0,
            BAR - 6.0,
            at(least),
            at(most_of)
        );
        let ratio = of_bare.map_or_else(String::new, |ratio| format!(" · {ratio:.2} of bare"));
        text(body, (at(most_of) + 8.0, line), "", &format!("{}{ratio}", figure(middle_of)));
        y += BAR;
    }
    y
}

fn text(body: &mut String, at: (f64, f64), style: &str, text: &str) {
    let _ = writeln!(body, "<text x='{:.1}' y='{:.1}' {style}>{}</text>", at.0, at.1, escaped(text));
}

/// Text between two marks of XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_well_formed_whatever_the_names_are() {
        let row = |leg: &str, side, of_bare: &[f64]| Row {
            leg: leg.to_owned(),
            side,
            unit: "jobs/s",
            values: vec![10.0, 20.0],
            of_bare: of_bare.to_vec(),
            cpu_micros_per_job: vec![3.0],
            load: vec![1.0],
            note: String::new(),
        };
        let rows = vec![row("bare", Side::Bare, &[]), row("a <b> & 'c'", Side::Peer, &[0.5])];
        let scene = Scene { name: "drain", title: "x < y".to_owned(), rows, failed: Vec::new() };

        let svg = svg(&scene, "now & here");

        assert!(svg.contains("a &lt;b&gt; &amp; 'c'") && svg.contains("x &lt; y") && svg.contains("· 0.50 of bare"));
        // Every mark that is opened is closed, by itself or by its partner, and no other < or & is left.
        let mut open: Vec<&str> = Vec::new();
        for mark in svg.split('<').skip(1).map(|rest| rest.split_once('>').expect("a mark ends").0) {
            match mark.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if mark.ends_with('/') => {}
                None => open.push(mark.split(' ').next().unwrap()),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(svg.split('&').skip(1).all(|rest| ["amp;", "lt;", "gt;"].iter().any(|end| rest.starts_with(end))));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
