//! Placeholder.
fn main() {
    print!("{}", longshore::config::reference());
}
