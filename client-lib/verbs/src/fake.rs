//! A device in this process, behind the table of functions that libibverbs fills otherwise, for tests of everything above that table.
//!
//! It moves bytes from memory to memory as a device does, and is strict where devices are lenient or merely crash: it keeps account of all that is made, and
//! a [`Fake`] fails its test if something is destroyed while it is needed, or twice, or never, or if what is given is against the rules. All is
//! under one lock, and is done within the call that asks for it, unless the device is [held](Fake::hold).
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

/// What a test has of the fake device: its rules, and what was done to it. When it goes, everything has to be gone.
pub(crate) struct Fake(u64);

/// What one test says of its devices.
pub(crate) struct World {
    pub(crate) devices: Vec<&'static str>,
    pub(crate) is_active: bool,
    pub(crate) mtu: ibv_mtu::Type,
    pub(crate) lid: u16,
    /// By their rows.
    pub(crate) gids: Vec<Ipv6Addr>,
    /// The index of the interface that they belong to.
    pub(crate) interface: u32,
    /// Its port takes no packets without GIDs.
    pub(crate) needs_gids: bool,
    /// What a pair may be asked for at most, and what it gets at least.
    pub(crate) inline: (u32, u32),
    /// Says that it has given more completions than there was room for.
    pub(crate) overfills_polls: bool,
    /// Bytes turn over on their way.
    pub(crate) corrupts_bytes: bool,
    is_held: bool,
    failing: Option<Failing>,
    calls: Vec<Verb>,
}

/// Calls that can be made to fail.
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
    /// All of this kind.
    Every(Verb, i32),
    /// The one with this number, of all kinds.
    One(usize, i32),
}

/// All fake devices of all tests.
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
    /// The next number of a world, a pair or a key.
    next: u32,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));
/// Something is gone, or has been acknowledged.
static CHANGED: Condvar = Condvar::new();
/// What was done against the rules, and in which world.
static FAULTS: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());

/// Longer than any machine needs for what another thread has begun: only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(30);

thread_local! {
    /// `ibv_get_device_list` takes nothing by which it could be told apart whose it is.
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

    /// The table. Devices that are listed by it in this thread are this fake's.
    pub(crate) fn library(&self) -> &'static Library {
        static LIBRARY: LazyLock<Library> = LazyLock::new(control::table);
        CURRENT.set(self.0);
        &LIBRARY
    }

    /// The first device, opened.
    pub(crate) fn open(&self) -> crate::Context {
        let devices = self.library().devices().expect("devices");
        devices.first().expect("a device").open().expect("opens")
    }

    pub(crate) fn configure(&self, change: impl FnOnce(&mut World)) {
        change(state().world(self.0));
    }

    /// From now on calls of this kind fail.
    pub(crate) fn fail(&self, verb: Verb, errno: i32) {
        self.configure(|world| world.failing = Some(Failing::Every(verb, errno)));
    }

    /// The call with this number fails, from zero.
    pub(crate) fn fail_call(&self, number: usize, errno: i32) {
        self.configure(|world| world.failing = Some(Failing::One(number, errno)));
    }

    /// None fails any more.
    pub(crate) fn stop_failing(&self) {
        self.configure(|world| world.failing = None);
    }

    /// The calls so far, of those that can fail.
    pub(crate) fn calls(&self) -> Vec<Verb> {
        state().world(self.0).calls.clone()
    }

    /// What is posted stays in the send queues.
    pub(crate) fn hold(&self) {
        self.configure(|world| world.is_held = true);
    }

    /// What is in the send queues goes out.
    pub(crate) fn release(&self) {
        let mut state = state();
        state.world(self.0).is_held = false;
        state.run(self.0);
    }

    /// All open devices have an event of this kind.
    pub(crate) fn raise_event(&self, kind: u32) {
        for context in state().contexts.all_mut(self.0) {
            let element = context.raw.pointer().expose_provenance();
            context.events.push_back((element, kind));
            context.file.write(1).expect("room for events");
        }
    }

    /// All queues of this world that report, and all pairs that use one, have an event: of these kinds.
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

    /// So many registrations there are.
    pub(crate) fn registrations(&self) -> usize {
        state().regions.count(self.0)
    }

    /// So many of them peers may write to.
    pub(crate) fn reachable(&self) -> usize {
        let remote = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        state().regions.all(self.0).filter(|region| region.access & remote != 0).count()
    }

    /// The service levels and traffic classes of its pairs, in some order.
    pub(crate) fn classes(&self) -> Vec<(u8, u8)> {
        state().pairs.all(self.0).map(|pair| pair.route.class).collect()
    }

    /// What there is, by kind.
    pub(crate) fn remaining(&self) -> String {
        state().remaining(self.0)
    }

    /// Waits until something holds that another thread has begun.
    pub(crate) fn wait_until(&self, mut holds: impl FnMut(&str) -> bool) {
        let wait = CHANGED.wait_timeout_while(state(), PATIENCE, |state| !holds(&state.remaining(self.0)));
        let (state, timeout) = wait.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "it does not come to an end; there is {}", state.remaining(self.0));
    }

    /// What was done against the rules, which is forgotten.
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
        // Pages end in a thread of their own.
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

    /// Takes note of a call. Its error, if it is to fail.
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

/// Takes note of something that is against the rules.
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

/// Returns the error number of a call, or 0.
fn returned(done: Result<(), i32>) -> c_int {
    done.err().unwrap_or_default()
}

/// The GID by which tests connect.
pub(crate) fn gid() -> Ipv6Addr {
    "fd00::1".parse().expect("an address")
}
