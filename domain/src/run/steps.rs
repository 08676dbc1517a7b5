//! The steps of its work that a run's handlers have finished, and do not do again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::{Run, Timestamp};

const MAX_STEPS: usize = 256;

/// A finished step, without its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its name.
    pub name: SmolStr,
    /// The how many-eth use of the name in its run.
    pub n: u32,
    /// When its result was stored.
    pub at: Timestamp,
    /// The attempt that finished it.
    pub attempt: u32,
}

impl Run {
    /// Lists a finished step, the first 256 of a run; says whether it was not listed before.
    pub fn list_step(&mut self, step: Step) -> bool {
        let is_listed = self.steps.iter().any(|listed| (&listed.name, listed.n) == (&step.name, step.n));
        if !is_listed && self.steps.len() < MAX_STEPS {
            self.steps.push(step);
        }
        !is_listed
    }
}
