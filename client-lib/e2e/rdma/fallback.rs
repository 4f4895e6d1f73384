//! The reasons why RDMA cannot be used, and the fallback to TCP if it is allowed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_client::{Connector, Endpoint, Listener, ListenerBuilder, PeerSet, Transport, TransportKind};
use multinet_testing::guest;
use multinet_testing::in_guest;
use multinet_testing::process::workspace_binary;
use multinet_testing::wait::eventually;

use super::{BOUND, LINK, amount, follow, no_resolver};

/// Changes to the machine, each with the reason why RDMA is off. All run in one guest, one after
/// the other. A temporary fault is tried again for half a minute, for which the script does not
/// wait (`TRIES`). With `TCP`, a client that may use TCP runs too.
const CASES: &[(&str, &str)] = &[
    (
        "TCP=yes SERVER=10.9.5.1",
        "10.9.5.1:18515 cannot be reached by RDMA: no RDMA device has a GID of 10.9.5.1",
    ),
    (
        "TCP= SERVER=10.9.0.2; PREFIX='setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=8192:8192'",
        "too little memory may be locked: 1036 KiB are needed, 8 KiB is the limit (memlock), of which 0 KiB are in use, as root without CAP_IPC_LOCK; raise memlock \
         (LimitMEMLOCK=infinity in containerd's systemd unit on the node); or add the capability IPC_LOCK (securityContext.capabilities.add)",
    ),
    (
        // It has the capability, which does not help in a user namespace.
        "PREFIX='prlimit --memlock=8192:8192 unshare --user --map-root-user'",
        "in a user namespace, where CAP_IPC_LOCK does not count; raise memlock",
    ),
    (
        // Enough for what is known at first, but not for frames as large as the server's, of which
        // two are copied at a time.
        "TRIES=again TCP=yes PREFIX='setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=2097152:2097152'",
        "too little memory may be locked: 2057 KiB are needed, 2048 KiB is the limit (memlock), of which 12 KiB are in use",
    ),
    (
        // The address of this pod is also in the GID of another pod; all namespaces see the device.
        "for it in pod far; do ip netns add $it; done; ip link add net1 netns pod type veth peer name net1 netns far
         ip -n pod address add 10.9.0.1/24 dev net1; ip -n far address add 10.9.0.9/24 dev net1
         for it in pod far; do ip -n $it link set lo up; ip -n $it link set net1 up; done
         serve 10.9.0.9 'ip netns exec far'; SERVER=10.9.0.9 PREFIX='ip netns exec pod' TRIES=again TCP=",
        "no RDMA device has a GID of 10.9.0.1; rxe0 port 1 GID 1 (::ffff:10.9.0.1) belongs to the interface rdma0",
    ),
    (
        "TRIES= PREFIX= SERVER=10.9.0.2; mv /usr/lib/*/libibverbs /usr/lib/providers",
        "libibverbs does not show rxe0",
    ),
    (
        "mv /usr/lib/*/libibverbs.so.1 /usr/lib/away",
        "libibverbs cannot be loaded (libibverbs.so.1: cannot open shared object file: No such file or directory); install libibverbs1",
    ),
    ("rdma link delete rxe0", "this machine has no RDMA device"),
    (
        // A process that has the device open keeps the modules loaded.
        "TCP=yes; kill $servers; wait; rmmod rdma_rxe rdma_ucm rdma_cm iw_cm ib_cm ib_uverbs ib_core; serve 10.9.0.2",
        "the kernel has no RDMA: its modules (ib_core, ib_uverbs and the device's own) are not loaded",
    ),
];

#[tokio::test]
async fn the_reason_is_reported_and_tcp_is_used() -> Result<()> {
    let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
    let multinet = multinet.display();
    let mut script = LINK.to_owned();
    script.push_str(
        "ip link add rdma1 type dummy; ip link set rdma1 up; ip address add 10.9.5.1/24 dev rdma1\n",
    );
    script.push_str(&format!(
        "servers=
         serve() {{ $2 {multinet} bench server --address $1 -s 1048576 --slots 4 >/tmp/server-$1 2>&1 & servers=\"$servers $!\"
         wait_for grep -q 'listening on' /tmp/server-$1; }}\n"
    ));
    // The servers load what they need before it is removed.
    script.push_str("serve 10.9.0.2; serve 10.9.5.1\n");
    for (number, (change, _)) in CASES.iter().enumerate() {
        script.push_str(&format!(
            "{change}\necho '=== {number}'\n\
             $PREFIX {multinet} bench client $SERVER -n 5 --transport rdma --log-level info >/tmp/refused 2>&1 &\n\
             [ -z \"$TRIES\" ] || {{ wait_for grep -q 'by RDMA: ' /tmp/refused; kill -KILL $!; }}\n\
             wait $! || echo \"exit status $?\" >>/tmp/refused\n\
             cat /tmp/refused\n\
             [ -z \"$TCP\" ] || $PREFIX {multinet} bench client $SERVER -n 5 --log-level info\n"
        ));
    }
    let said = guest::run(&script, BOUND).await?;
    ensure!(said.status == 0, "exit status {}:\n{}", said.status, said.output);
    let parts: Vec<&str> = said.output.split("=== ").skip(1).collect();
    ensure!(parts.len() == CASES.len(), "{}", said.output);
    for ((change, reason), part) in CASES.iter().zip(parts) {
        let (by_rdma, by_any) = part.split_once("exit status ").with_context(|| part.to_owned())?;
        ensure!(by_any.starts_with("1\n") || change.contains("TRIES=again"), "{part}");
        ensure!(by_rdma.contains(reason), "{reason:?} is not in:\n{by_rdma}");
        if !change.contains("TCP=yes") {
            continue;
        }
        let reason = reason.split_once("by RDMA: ").map_or(*reason, |(_, reason)| reason);
        ensure!(
            by_any.contains("frames go over TCP: ") && by_any.contains(reason),
            "{reason:?} is not in:\n{by_any}"
        );
        ensure!(by_any.contains("Transport type : TCP"), "{by_any}");
    }
    Ok(())
}

/// All parts share one guest.
#[tokio::test]
async fn peers_differ() -> Result<()> {
    in_guest!();
    one_set_has_peers_of_both_kinds().await.context("mixed")?;
    both_sides_have_to_agree().await.context("agreeing")?;
    many_peers_share_a_device().await.context("many")
}

async fn one_set_has_peers_of_both_kinds() -> Result<()> {
    // With slots for all, so that every peer gets frames.
    let rdma = listener().slots(64).bind().await?;
    let tcp = listener().slots(64).transport(Transport::Tcp).bind().await?;
    let peers = connect(&[&rdma, &tcp], Transport::Auto)?;
    peers.connected(2).await;
    let status = peers.status();
    let found: Vec<_> = status.iter().map(|peer| (peer.transport, peer.instead_of_rdma.as_deref())).collect();
    ensure!(found.contains(&(Some(TransportKind::Rdma), None)), "{status:#?}");
    let reason =
        found.iter().find(|(kind, _)| *kind == Some(TransportKind::Tcp)).and_then(|(_, reason)| *reason);
    ensure!(
        reason.is_some_and(|reason| reason.ends_with(": this listener does not allow it")),
        "{status:#?}"
    );
    for number in 0..10_u8 {
        peers.send(vec![number; 1000]).await?;
        let frame = tokio::select! {
            frame = rdma.recv() => frame?,
            frame = tcp.recv() => frame?,
        };
        ensure!(frame.bytes() == [number; 1000], "frame {number}");
    }
    let counts = [&rdma, &tcp].map(|listener| listener.statistics().frames);
    ensure!(counts == [5, 5], "{counts:?}");
    Ok(())
}

async fn both_sides_have_to_agree() -> Result<()> {
    let cases = [
        (Transport::Tcp, Transport::Rdma, "RDMA cannot be used: this listener does not allow it"),
        (Transport::Rdma, Transport::Tcp, "RDMA cannot be used: the sender does not offer it"),
    ];
    for (theirs, ours, reason) in cases {
        let listener = listener().transport(theirs).bind().await?;
        let peers = connect(&[&listener], ours)?;
        let error = last_error(&peers).await?;
        ensure!(error.contains(reason), "{error}");
    }
    Ok(())
}

async fn last_error(peers: &PeerSet) -> Result<String> {
    eventually("a refusal", BOUND, async || {
        let status = peers.status();
        let error = status.first().and_then(|peer| Some(peer.last_error.as_ref()?.to_string()));
        error.context("no error yet")
    })
    .await
}

async fn many_peers_share_a_device() -> Result<()> {
    let (count, rounds) = (amount(16, 64), amount(3, 20) as u8);
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(listener().slots(rounds.into()).bind().await?);
    }
    let peers = connect(&listeners.iter().collect::<Vec<_>>(), Transport::Rdma)?;
    tokio::time::timeout(BOUND, peers.connected(count))
        .await
        .with_context(|| format!("{:#?}", peers.status()))?;
    for round in 0..rounds {
        for _ in 0..count {
            peers.send(vec![round; 100]).await?;
        }
        for listener in &listeners {
            let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
            ensure!(frame.bytes() == [round; 100], "round {round}: {frame:?}");
        }
    }
    ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
    Ok(())
}

fn listener() -> ListenerBuilder {
    let listener = Listener::builder().address([10, 9, 0, 2].into()).port(0).frame_size(4096).slots(4);
    // Long, since the guest is slow.
    listener.patience(Duration::from_secs(60))
}

/// Returns a PeerSet with these listeners as its peers.
fn connect(listeners: &[&Listener], transport: Transport) -> Result<PeerSet> {
    let connector = Connector::builder().resolver(no_resolver()?).transport(transport);
    let all = listeners.iter().map(|it| Endpoint::at(it.local_addresses()[0])).collect();
    follow(connector.patience(Duration::from_secs(60)), all)
}
