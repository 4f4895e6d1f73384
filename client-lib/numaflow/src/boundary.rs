//! Boundary between two Pipelines, or to a MonoVertex: frames go from a sink to a source.

mod envelope;
mod recent;
mod sink;
mod source;

pub(crate) use envelope::ID_HEADER;
pub use sink::FrameSink;
pub use source::FrameSource;
