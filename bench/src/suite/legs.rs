//! Legs side by side: each runs once a round, forward and then backward, and its figures are set beside those of the
//! bare leg of the same round.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde::Serialize;

use crate::machine::Weather;

/// Whose figures they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    Bare,
    Longshore,
    Peer,
}

/// One figure of one leg in one round.
#[derive(Debug, Clone)]
pub(super) struct Figure {
    pub unit: &'static str,
    pub value: f64,
    /// Processor time per job of all processes, in microseconds.
    pub micros: Option<f64>,
    pub note: String,
}

impl Figure {
    pub(super) fn new(unit: &'static str, value: f64) -> Figure {
        Figure { unit, value, micros: None, note: String::new() }
    }

    pub(super) fn costing(unit: &'static str, value: f64, micros: f64) -> Figure {
        Figure { micros: Some(micros), ..Figure::new(unit, value) }
    }
}

/// The figures of a leg, once it has run.
pub(super) type Running<'l> = LocalBoxFuture<'l, anyhow::Result<Vec<Figure>>>;

/// What is measured as often as there are rounds.
pub(super) struct Leg<'l> {
    name: String,
    side: Side,
    /// Which leg of the scene is its bare one.
    beside: Option<usize>,
    run: Box<dyn Fn() -> Running<'l> + 'l>,
}

impl<'l> Leg<'l> {
    pub(super) fn new<F>(name: &str, side: Side, beside: Option<usize>, run: impl Fn() -> F + 'l) -> Leg<'l>
    where
        F: Future<Output = anyhow::Result<Vec<Figure>>> + 'l,
    {
        Leg { name: name.to_owned(), side, beside, run: Box::new(move || run().boxed_local()) }
    }
}

/// A figure of a leg over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub leg: String,
    pub side: Side,
    pub unit: &'static str,
    pub values: Vec<f64>,
    /// Of the bare leg's figure in the same round.
    pub of_bare: Vec<f64>,
    pub cpu_micros_per_job: Vec<f64>,
    /// The machine's load average after each round.
    pub load: Vec<f64>,
    pub note: String,
}

/// What was measured side by side.
#[derive(Debug, Serialize)]
pub(super) struct Scene {
    pub name: &'static str,
    pub title: String,
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub failed: Vec<String>,
}

/// Runs all legs in each round. One that fails does not keep the others from running.
pub(super) async fn side_by_side(name: &'static str, title: String, legs: &[Leg<'_>], rounds: usize) -> Scene {
    let mut scene = Scene { name, title, rows: Vec::new(), failed: Vec::new() };
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..legs.len()).collect();
        // So that a drift of the machine cancels.
        if round % 2 == 1 {
            order.reverse();
        }
        let mut found = vec![Vec::new(); legs.len()];
        for at in order {
            let leg = &legs[at];
            // The harness panics where it cannot go on.
            let outcome = AssertUnwindSafe((leg.run)()).catch_unwind().await;
            match outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("a panic; see above"))) {
                Ok(figures) => {
                    let said = figures.iter().map(|figure| format!("{:.2} {}", figure.value, figure.unit));
                    println!("{name} {}/{rounds}, {}: {}", round + 1, leg.name, said.collect::<Vec<_>>().join(", "));
                    found[at] = figures;
                }
                Err(error) => {
                    eprintln!("{name} {}/{rounds}, {}: FAILED: {error:#}", round + 1, leg.name);
                    scene.failed.push(format!("{}, round {}: {error:#}", leg.name, round + 1));
                }
            }
        }
        for (leg, figures) in legs.iter().zip(&found) {
            let bare = leg.beside.and_then(|beside| found.get(beside));
            figures.iter().for_each(|figure| scene.add(leg, figure, bare.map_or(&[], Vec::as_slice)));
        }
    }
    scene
}

impl Scene {
    fn add(&mut self, leg: &Leg<'_>, figure: &Figure, bare: &[Figure]) {
        let known = self.rows.iter().position(|row| row.leg == leg.name && row.unit == figure.unit);
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row {
                leg: leg.name.clone(),
                side: leg.side,
                unit: figure.unit,
                values: Vec::new(),
                of_bare: Vec::new(),
                cpu_micros_per_job: Vec::new(),
                load: Vec::new(),
                note: figure.note.clone(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.values.push(figure.value);
        row.load.push(Weather::now().load);
        row.cpu_micros_per_job.extend(figure.micros);
        row.of_bare.extend(ratio(figure, bare));
    }
}

/// A figure, of the bare one of the same unit.
fn ratio(figure: &Figure, bare: &[Figure]) -> Option<f64> {
    let bare = bare.iter().find(|bare| bare.unit == figure.unit)?;
    (bare.value > 0.0).then(|| figure.value / bare.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn figures_are_set_beside_those_of_the_same_round_and_unit() {
        let turn = std::cell::Cell::new(0.0);
        let bare = async || {
            turn.set(turn.get() + 1.0);
            Ok(vec![Figure::new("ms", 5.0), Figure::new("jobs/s", 100.0 * turn.get())])
        };
        let ours = async || Ok(vec![Figure::costing("jobs/s", 50.0, 7.0)]);
        let fails = async || anyhow::bail!("no such thing");
        let legs = [
            Leg::new("bare", Side::Bare, None, bare),
            Leg::new("ours", Side::Longshore, Some(0), ours),
            Leg::new("peer", Side::Peer, Some(0), fails),
        ];

        let scene = side_by_side("drain", String::new(), &legs, 2).await;

        let ours = scene.rows.iter().find(|row| row.leg == "ours").unwrap();
        assert_eq!((&ours.of_bare, &ours.cpu_micros_per_job), (&vec![0.5, 0.25], &vec![7.0, 7.0]));
        assert_eq!(scene.failed, ["peer, round 1: no such thing", "peer, round 2: no such thing"]);
    }
}
