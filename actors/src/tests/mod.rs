//! Tests of several parts at once.

mod simulation;
