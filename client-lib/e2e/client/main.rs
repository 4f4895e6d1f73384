//! Tests of `multinet-client` and its programs with the whole chain behind them.

mod chain;
mod dependencies;
mod docs;
mod doctor;
mod examples;
mod frameworks;
mod hostfile;
mod matrix;
mod memory;
mod multinet;
mod nics;
mod numaflow;
mod references;
mod resolve;
mod torchrun;
mod transfer;
