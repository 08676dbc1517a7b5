//! The settings of a node's watch over processor and memory: `[pressure]`.

use longshore_domain::pressure::PressureLimits;

use crate::config::kind::Text;
use crate::config::schema::settings;

settings! {
    /// A node that is short of processor or memory pulls fewer jobs, so that other nodes take them. On Linux only.
    PRESSURE: PressureEntries of PressureLimits, PRESSURE_TABLE;

    /// Whether the node looks every second how short it is of them.
    watch: bool = true;
    /// It is short of processor once some of its tasks wait for one in more than this share of the time (pressure stall
    /// information); 1.0: never. It pulls fewer jobs ahead then.
    cpu: f64, at_least(|| 0.01), at_most(|| 1.0);
    /// It is short of memory once more than this share of its control group's limit, or of the machine's memory, is in
    /// use; 1.0: never. Fewer of its workers get jobs then.
    memory: f64, at_least(|| 0.01), at_most(|| 1.0);
    /// The same once some of its tasks wait for memory in more than this share of the time; 1.0: never.
    memory_stall: f64, at_least(|| 0.01), at_most(|| 1.0);
    /// The folder that has proc and sys: another one where those of the host are mounted in a container.
    root: Text = Text("/".to_owned());
}
