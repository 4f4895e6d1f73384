//! A fake device in this process, for tests of everything above the function table of libibverbs.
//!
//! It copies bytes from memory to memory as a device does, but it is stricter. It tracks every
//! object. A [`Fake`] fails its test if an object is destroyed while another needs it, twice or
//! never, or if a call breaks a rule. All state is under one lock. Posted writes are executed
//! within the call that posts them, unless the device is [held](Fake::hold).
#![allow(unsafe_code, reason = "stands in for verbs")]

mod completion_queues;
mod control;
mod objects;
mod queue_pairs;
mod tests;
mod wire;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use rdma_sys::{ibv_access_flags, ibv_mtu};

use self::objects::{
    CompletionChannel, CompletionQueue, Context, Device, List, Made, MemoryRegion, ProtectionDomain,
    QueuePair, Table,
};
use crate::library::Library;

/// The handle of a test to its fake devices: it sets their properties and sees their state. When it
/// is dropped, all objects have to be gone.
pub(crate) struct Fake(u64);

/// The properties that a test sets for its fake devices.
pub(crate) struct World {
    pub(crate) devices: Vec<&'static str>,
    pub(crate) is_active: bool,
    pub(crate) mtu: ibv_mtu::Type,
    pub(crate) lid: u16,
    /// The GIDs of the port, in the order of their indexes.
    pub(crate) gids: Vec<Ipv6Addr>,
    /// The index of the network interface that the GIDs belong to; 0 for none.
    pub(crate) interface: u32,
    /// Whether the port refuses to bring a queue pair to RTR without a GID, as under RoCE.
    pub(crate) needs_gids: bool,
    /// The most inline data that a queue pair may request, and the least that it gets.
    pub(crate) inline: (u32, u32),
    /// A poll claims to have returned more completions than there was room for.
    pub(crate) overfills_polls: bool,
    /// Whether the device inverts all bytes that it writes.
    pub(crate) corrupts_bytes: bool,
    is_held: bool,
    failing: Option<Failing>,
    calls: Vec<Verb>,
}

/// The calls of libibverbs that a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    List,
    Open,
    Query,
    AllocPd,
    RegMr,
    RegDmaBuf,
    CreateChannel,
    GetEvent,
    CreateCq,
    Poll,
    Arm,
    CreateQp,
    Modify,
    PostSend,
    PostReceive,
}

#[derive(Clone, Copy)]
enum Failing {
    /// All calls of this kind, with this `errno`.
    Every(Verb, i32),
    /// The call with this number, of any kind, counted from 0, with this `errno`.
    One(usize, i32),
}

/// All fake devices of all tests, and the objects that exist on them.
struct State {
    worlds: HashMap<u64, World>,
    lists: Table<List>,
    devices: Table<Device>,
    contexts: Table<Context>,
    domains: Table<ProtectionDomain>,
    regions: Table<MemoryRegion>,
    channels: Table<CompletionChannel>,
    queues: Table<CompletionQueue>,
    pairs: Table<QueuePair>,
    /// The last number that was given to a world, a queue pair or a key.
    next: u32,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));
/// Signals that an object is gone, or that an event was acknowledged.
static CHANGED: Condvar = Condvar::new();
/// The breaches of the rules of verbs, each with the number of its test's world.
static FAULTS: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());

/// The longest wait for another thread. Only failing tests wait for that long.
const PATIENCE: Duration = Duration::from_secs(30);

thread_local! {
    /// The world of this thread's test: `ibv_get_device_list` has no argument that could tell it.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl Fake {
    pub(crate) fn new() -> Self {
        let world = World {
            devices: vec!["fake_0"],
            is_active: true,
            mtu: ibv_mtu::IBV_MTU_1024,
            lid: 7,
            gids: vec![Ipv6Addr::LOCALHOST, gid()],
            interface: 0,
            needs_gids: false,
            inline: (512, 0),
            overfills_polls: false,
            corrupts_bytes: false,
            is_held: false,
            failing: None,
            calls: Vec::new(),
        };
        let mut state = state();
        let number = u64::from(state.number());
        state.worlds.insert(number, world);
        Self(number)
    }

    /// Returns the function table. The devices that this thread lists by it belong to this fake.
    pub(crate) fn library(&self) -> &'static Library {
        static LIBRARY: LazyLock<Library> = LazyLock::new(control::table);
        CURRENT.set(self.0);
        &LIBRARY
    }

    /// Opens the first fake device of this test.
    pub(crate) fn open(&self) -> crate::Context {
        let devices = self.library().devices().expect("devices");
        devices.first().expect("a device").open().expect("opens")
    }

    pub(crate) fn configure(&self, change: impl FnOnce(&mut World)) {
        change(state().world(self.0));
    }

    /// Makes all calls of this kind fail with this `errno`.
    pub(crate) fn fail(&self, verb: Verb, errno: i32) {
        self.configure(|world| world.failing = Some(Failing::Every(verb, errno)));
    }

    /// Makes the call with this number, counted from 0, fail with this `errno`.
    pub(crate) fn fail_call(&self, number: usize, errno: i32) {
        self.configure(|world| world.failing = Some(Failing::One(number, errno)));
    }

    /// Ends the effect of [`fail`](Self::fail) and [`fail_call`](Self::fail_call).
    pub(crate) fn stop_failing(&self) {
        self.configure(|world| world.failing = None);
    }

    /// Returns the calls so far, of those that can be made to fail.
    pub(crate) fn calls(&self) -> Vec<Verb> {
        state().world(self.0).calls.clone()
    }

    /// Holds posted writes back in their send queues until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.configure(|world| world.is_held = true);
    }

    /// Executes the writes that [`hold`](Self::hold) has held back, and those posted later at once.
    pub(crate) fn release(&self) {
        let mut state = state();
        state.world(self.0).is_held = false;
        state.run(self.0);
    }

    /// Raises an asynchronous event of this kind on all open devices of this test.
    pub(crate) fn raise_event(&self, kind: u32) {
        for context in state().contexts.all_mut(self.0) {
            let element = context.raw.pointer().expose_provenance();
            context.events.push_back((element, kind));
            context.file.write(1).expect("room for events");
        }
    }

    /// Raises events of these kinds for all completion queues that report, and for the queue pairs
    /// that use them.
    pub(crate) fn raise_error_events(&self, queues: u32, pairs: u32) {
        let mut state = state();
        let of_queues = state.queues.all(self.0).filter(|queue| queue.channel != 0);
        let of_queues: Vec<_> =
            of_queues.map(|queue| (queue.context, queue.raw.pointer().expose_provenance())).collect();
        let mut events = Vec::new();
        for (context, queue) in of_queues {
            events.push((context, queue, queues));
            let users = state.pairs.all(self.0).filter(|pair| pair.queue == queue);
            events.extend(users.map(|pair| (context, pair.raw.pointer().expose_provenance(), pairs)));
        }
        for (context, element, kind) in events {
            let context = state.contexts.at(context).expect("queues have one");
            context.events.push_back((element, kind));
            context.file.write(1).expect("room for events");
        }
    }

    /// Returns the number of memory registrations that exist.
    pub(crate) fn registrations(&self) -> usize {
        state().regions.count(self.0)
    }

    /// Returns the number of memory registrations that peers may write to.
    pub(crate) fn reachable(&self) -> usize {
        let remote = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        state().regions.all(self.0).filter(|region| region.access & remote != 0).count()
    }

    /// Returns the service levels and traffic classes of all queue pairs, in any order.
    pub(crate) fn classes(&self) -> Vec<(u8, u8)> {
        state().pairs.all(self.0).map(|pair| pair.route.class).collect()
    }

    /// Returns the numbers of objects that exist, by kind, as text; empty if there are none.
    pub(crate) fn remaining(&self) -> String {
        state().remaining(self.0)
    }

    /// Waits until the objects that exist satisfy a condition, which another thread brings about.
    pub(crate) fn wait_until(&self, mut holds: impl FnMut(&str) -> bool) {
        let wait = CHANGED.wait_timeout_while(state(), PATIENCE, |state| !holds(&state.remaining(self.0)));
        let (state, timeout) = wait.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "it does not come to an end; there is {}", state.remaining(self.0));
    }

    /// Takes the messages on breaches of the rules so far.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        faults.extract_if(.., |(world, _)| *world == self.0).map(|(_, text)| text).collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Pages are freed on a background thread.
        self.wait_until(str::is_empty);
        let faults = self.faults();
        assert!(faults.is_empty(), "against the rules: {faults:#?}");
        state().worlds.remove(&self.0);
    }
}

impl State {
    fn new() -> Self {
        Self {
            worlds: HashMap::new(),
            lists: Table::new("list"),
            devices: Table::new("device"),
            contexts: Table::new("context"),
            domains: Table::new("domain"),
            regions: Table::new("region"),
            channels: Table::new("channel"),
            queues: Table::new("queue"),
            pairs: Table::new("pair"),
            next: 1,
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn world(&mut self, number: u64) -> &mut World {
        self.worlds.get_mut(&number).expect("the test that this is of has not ended")
    }

    /// Records a call of libibverbs. Returns the error number if a test makes it fail.
    fn call(&mut self, world: u64, verb: Verb) -> Result<(), i32> {
        let world = self.world(world);
        let number = world.calls.len();
        world.calls.push(verb);
        match world.failing {
            Some(Failing::Every(failing, errno)) if failing == verb => Err(errno),
            Some(Failing::One(failing, errno)) if failing == number => Err(errno),
            _ => Ok(()),
        }
    }

    fn remaining(&self, world: u64) -> String {
        let mut left = String::new();
        self.lists.describe(world, &mut left);
        self.devices.describe(world, &mut left);
        self.contexts.describe(world, &mut left);
        self.domains.describe(world, &mut left);
        self.regions.describe(world, &mut left);
        self.channels.describe(world, &mut left);
        self.queues.describe(world, &mut left);
        self.pairs.describe(world, &mut left);
        left
    }
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a breach of the rules of verbs, which fails the test of this world.
fn fault(world: u64, text: impl Into<String>) {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner).push((world, text.into()));
}

/// Returns the pointer of a call that creates an object, or null with `errno` set.
fn made<T>(made: Result<*mut T, i32>) -> *mut T {
    made.unwrap_or_else(|errno| {
        Errno::set_raw(errno);
        std::ptr::null_mut()
    })
}

/// Returns the error number of a call that returns one, or 0 for success.
fn returned(done: Result<(), i32>) -> c_int {
    done.err().unwrap_or_default()
}

/// Returns the GID by which tests connect, the second of the port.
pub(crate) fn gid() -> Ipv6Addr {
    "fd00::1".parse().expect("an address")
}
