//! A set of bounded size that forgets what was added first.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// The values that were added last, `MOST` at most.
#[derive(Debug)]
pub(crate) struct LastAdded<T, const MOST: usize> {
    values: HashSet<T>,
    /// In the order in which they were added, with those that were removed.
    order: VecDeque<T>,
}

impl<T, const MOST: usize> Default for LastAdded<T, MOST> {
    fn default() -> Self {
        Self { values: HashSet::new(), order: VecDeque::new() }
    }
}

impl<T: Clone + Eq + Hash, const MOST: usize> LastAdded<T, MOST> {
    /// Adds one; the oldest is forgotten if there are too many. Whether it is new. One that was removed is not to be
    /// added again.
    pub(crate) fn add(&mut self, value: T) -> bool {
        if !self.values.insert(value.clone()) {
            return false;
        }
        self.order.push_back(value);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
        true
    }

    pub(crate) fn has(&self, value: &T) -> bool {
        self.values.contains(value)
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, value: &T) -> bool {
        self.values.remove(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T, const MOST: usize> LastAdded<T, MOST> {
        /// How many are there, and how many have a place in the order.
        pub(crate) fn sizes(&self) -> [usize; 2] {
            [self.values.len(), self.order.len()]
        }
    }

    #[test]
    fn the_oldest_is_forgotten_and_what_is_there_keeps_its_place() {
        let mut last = LastAdded::<u32, 3>::default();
        assert!([1, 2, 3].into_iter().all(|value| last.add(value)) && !last.add(1));
        assert!(last.add(4) && !last.has(&1) && [2, 3, 4].iter().all(|value| last.has(value)));
        assert!(last.remove(&3) && !last.remove(&3));
        assert!(last.add(5) && !last.has(&2) && last.has(&4));
        assert_eq!(last.sizes(), [2, 3]);
    }
}
