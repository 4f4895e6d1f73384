//! Real programs in pods with two NICs: PyTorch, Open MPI, MPICH, Mooncake, UCX and iperf3. With
//! `multinet`, their bytes are on the second NIC, and their parsers take its host files.

mod stage;
mod steps;

use std::time::Instant;

use anyhow::{Context as _, Result};
use multinet_testing::sandboxed;

use crate::stage::Stage;

/// The steps share the pods. Each counts its own bytes.
#[tokio::test]
async fn real_programs_keep_to_the_second_nic() -> Result<()> {
    sandboxed!();
    let started = Instant::now();
    let report = |step: &str| eprintln!("{:6.1} s: {step}", started.elapsed().as_secs_f64());
    let stage = Stage::start().context("the start")?;
    steps::iperf3(&stage).await.context("iperf3")?;
    report("iperf3");
    steps::ucx(&stage).await.context("UCX")?;
    report("UCX");
    steps::mooncake(&stage).await.context("Mooncake")?;
    report("Mooncake");
    steps::open_mpi(&stage).context("Open MPI")?;
    report("Open MPI");
    steps::mpich(&stage).context("MPICH")?;
    steps::deepspeed_and_horovod(&stage).context("DeepSpeed and Horovod")?;
    steps::ray(&stage).context("Ray")?;
    report("host files");
    steps::torch(&stage).await.context("PyTorch")?;
    report("PyTorch");
    steps::torchrun(&stage).await.context("torchrun")?;
    report("torchrun");
    steps::without_multinet(&stage).await.context("without multinet")?;
    report("the same without multinet");
    steps::the_small_program(&stage).context("the small program")?;
    report("the small program");
    Ok(())
}
