//! `multinet-client` and its programs at the end of the whole chain.

mod chain;
mod dependencies;
mod docs;
mod doctor;
mod examples;
mod memory;
mod multinet;
mod nics;
mod resolve;
mod transfer;
