//! The state machine by rules and by chance.

mod simulation;
