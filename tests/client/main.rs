//! `multinet-client` and its programs at the end of the whole chain.

mod chain;
mod docs;
mod doctor;
mod multinet;
mod resolve;
