//! Strangers that make the listener's device create queue pairs and memory: honest senders still
//! get theirs, and everything is freed in the end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream};
use multinet_client::{Acknowledge, PeerSet};
use multinet_testing::in_guest;
use multinet_testing::wait::eventually;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::raw::{hello, no_end, receive_json, send_json};
use super::{BOUND, honest, listener};
use crate::{amount, pairs};

const FRAME_SIZE: u32 = 64 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_ask_for_rdma_take_no_more_than_there_is() -> Result<()> {
    in_guest!();
    // Fewer connections than strangers.
    let connections = amount(10, 40);
    let listener = listener()
        .frame_size(FRAME_SIZE)
        .slots(1)
        .memory(connections * (FRAME_SIZE as usize + 4416))
        .acknowledge(Acknowledge::OnDrop)
        .patience(BOUND)
        .bind()
        .await?;
    let peers = honest(&listener).await?;
    let receiving = async {
        loop {
            drop(listener.recv().await?);
        }
    };
    let before = pairs()?;
    let address = listener.local_addresses()[0];
    let strangers = stream::iter(0..3 * connections as u32).map(|number| async move {
        let mut stream = TcpStream::connect(address).await?;
        // A queue pair that does not exist.
        let mut end = no_end(stream.local_addr()?.ip());
        end["qpn"] = (0x00ff_0000 + number).into();
        send_json(&mut stream, &hello(number + 1, &end)).await?;
        // Some leave before the answer.
        if number % 3 == 0 {
            return anyhow::Ok(None);
        }
        let answer: Value = receive_json(&mut stream).await?;
        // Some choose what they are offered.
        if number % 3 == 1 && answer["accept"].is_object() {
            send_json(&mut stream, &json!({"transport": "rdma"})).await?;
        }
        let is_let_in = answer["accept"].is_object();
        let reason = answer["refuse"]["message"].as_str().unwrap_or_default().to_owned();
        Ok(Some((stream, is_let_in, reason)))
    });
    let flooding = async {
        let all: Vec<_> =
            strangers.buffer_unordered(30).filter_map(|it| async { it.ok().flatten() }).collect().await;
        let most = pairs()?;
        let let_in = all.iter().filter(|(_, is_let_in, _)| *is_let_in).count();
        let full = all.iter().filter(|(_, _, reason)| reason.contains("as many as may be")).count();
        eprintln!("{let_in} are let in, {full} find no room, {most} queue pairs at the end");
        ensure!(let_in > 0 && let_in < connections, "{let_in} are let in");
        ensure!(most <= before + connections, "{most} queue pairs, after {before}");
        anyhow::Ok(all)
    };
    let behaving = send_frames(&peers);
    let all = tokio::select! {
        all = flooding => all?,
        outcome = behaving => return outcome,
        outcome = receiving => return outcome,
    };
    ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
    drop(all);
    eventually("only who behaves to be left", BOUND, async || {
        let (open, left) = (listener.statistics().connections, pairs()?);
        ensure!(open == 1 && left <= before, "{open} connections, {left} queue pairs");
        Ok(())
    })
    .await
}

/// Sends frames one after the other, which have to arrive in time.
async fn send_frames(peers: &PeerSet) -> Result<()> {
    loop {
        let begun = Instant::now();
        tokio::time::timeout(BOUND, peers.send("behaved")).await??;
        peers.flush().await?;
        ensure!(begun.elapsed() < BOUND, "a frame has taken {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
