//! The stand-in for the libraries of RDMA devices and GPUs, in a build without the feature
//! `devices`.

use multinet_client::gid;

use super::super::facts::{DmaBuf, FailedCall};

pub(super) fn verbs() -> Option<Result<(), FailedCall>> {
    None
}

pub(super) async fn cuda() -> Option<Result<u32, String>> {
    None
}

pub(super) fn peermem() -> Option<&'static str> {
    None
}

pub(super) async fn writes(_place: gid::DeviceGid) -> Result<u32, FailedCall> {
    Err(untried())
}

pub(super) async fn dma_buf(_device: String) -> Result<DmaBuf, FailedCall> {
    Err(untried())
}

fn untried() -> FailedCall {
    FailedCall { what: "this build of multinet does not try devices".to_owned(), fix: None }
}
