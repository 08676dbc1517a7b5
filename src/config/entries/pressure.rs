//! The settings of a node's watch over processor and memory: `[pressure]`.

use longshore_domain::pressure::PressureLimits;

use crate::config::kind::Text;
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

pub(super) static PRESSURE: Table = Table::of(
    "A node that is short of processor or memory pulls fewer jobs, so that other nodes take them. On Linux only.",
    &[One(&WATCH), One(&CPU), One(&MEMORY), One(&MEMORY_STALL), One(&ROOT)],
);

pub(crate) static WATCH: Entry<bool> =
    Entry::new("watch", || true, "Whether the node looks every second how short it is of them.");

pub(crate) static CPU: Entry<f64> = Entry::new(
    "cpu",
    || PressureLimits::default().cpu,
    "It is short of processor once some of its tasks wait for one in more than this share of the time (pressure stall \
     information); 1.0: never. It pulls fewer jobs ahead then.",
)
.at_least(|| 0.01)
.at_most(|| 1.0);

pub(crate) static MEMORY: Entry<f64> = Entry::new(
    "memory",
    || PressureLimits::default().memory,
    "It is short of memory once more than this share of its control group's limit, or of the machine's memory, is in \
     use; 1.0: never. Fewer of its workers get jobs then.",
)
.at_least(|| 0.01)
.at_most(|| 1.0);

pub(crate) static MEMORY_STALL: Entry<f64> = Entry::new(
    "memory_stall",
    || PressureLimits::default().memory_stall,
    "The same once some of its tasks wait for memory in more than this share of the time; 1.0: never.",
)
.at_least(|| 0.01)
.at_most(|| 1.0);

pub(crate) static ROOT: Entry<Text> = Entry::new(
    "root",
    || Text("/".to_owned()),
    "The folder that has proc and sys: another one where those of the host are mounted in a container.",
);
