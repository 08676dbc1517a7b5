//! The setting of faults on purpose: `[faults]`.

use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

pub(super) static FAULTS: Table =
    Table::of("Faults on purpose, which operators set while the cluster runs: \"longshore faults\".", &[One(&ALLOWED)]);

pub(crate) static ALLOWED: Entry<bool> =
    Entry::new("allowed", || false, "Whether this node's attempts may meet any, and its API sets them.");
