//! The RDMA devices in use, each with one thread that polls its completion queues.
//!
//! The thread polls a queue that has reported until it is empty. Then it arms the queue, and polls
//! once more, because a completion that came before the queue was armed is not reported. Only then
//! does it wait for the next report. With a busy time, it polls for that long before it arms the
//! queue: a peer that waits for an answer then gets it without an interrupt, at the price of a
//! processor.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use multinet_memory::Forced;
use multinet_verbs::{ChannelEvent, CompletionChannel, CompletionQueue, Context, Device, Error, Library};
use parking_lot::Mutex;
use tracing::warn;

use super::Unusable;
use super::gpu_method::GpuMethods;
use crate::gid::DeviceGid;
use crate::transport::Rdma;

/// The environment variable that forces the GPU method where the program sets none.
const GPU_METHOD_VARIABLE: &str = "MULTINET_GPU_METHOD";

/// Rounds in which the thread found no completion before it asks whether another queue has
/// reported. That is a system call.
const EMPTY_ROUNDS_PER_CHECK: u32 = 16;

/// The number of the first completion queue that has a handler. Queues of probes have the number 0.
const FIRST_QUEUE: u64 = 1;

/// A connection that the polling thread calls to handle its completions.
pub(crate) trait CompletionHandler: Send + Sync {
    /// Polls and handles some completions of the connection. Returns whether there were any.
    fn poll(&self) -> bool;

    /// Arms the connection's completion queue, so that it reports its next completion.
    fn arm(&self);

    /// Ends the connection: its completions will not be polled any more, for this reason.
    fn fail(&self, reason: &str);
}

/// The devices that a connector or a listener uses. Within a program, those that use one device in
/// the same way share it and its thread.
#[derive(Debug)]
pub(crate) struct RdmaDevices {
    pub(super) options: Rdma,
    /// The reason, logged last, why the GID was passed over for the next one; by GID.
    skipped: Mutex<HashMap<String, String>>,
}

/// The open devices of this program. Each has a lock of its own, so that a device that hangs while
/// it is opened does not hold up the others.
static OPEN_DEVICES: Mutex<BTreeMap<DeviceKey, Arc<Mutex<Weak<RdmaDevice>>>>> = Mutex::new(BTreeMap::new());

/// Name, busy time, GPU method and process: a forked child does not have its parent's thread.
type DeviceKey = (String, Duration, Forced, u32);

/// An open RDMA device with the thread that polls its completion queues.
#[derive(Debug)]
pub(super) struct RdmaDevice {
    context: Context,
    channel: CompletionChannel,
    handlers: Arc<Handlers>,
    next_queue: AtomicU64,
    pub(super) gpu_methods: GpuMethods,
    thread: Option<thread::JoinHandle<()>>,
}

/// The connections that handle the completions of one device, by the numbers of their queues.
#[derive(Default)]
struct Handlers {
    by_queue: Mutex<HashMap<u64, Weak<dyn CompletionHandler>>>,
    /// Why the polling thread has ended, once it has: no queue is polled any more.
    ended: OnceLock<String>,
}

impl RdmaDevices {
    pub(crate) fn new(mut options: Rdma) -> Self {
        options.gpu_method.get_or_insert_with(gpu_method_from_environment);
        Self { options, skipped: Mutex::default() }
    }

    /// Logs that a GID is skipped for the next one, unless the same reason was logged before.
    pub(super) fn log_skipped(&self, gid: &DeviceGid, error: &Unusable) {
        let (gid, reason) = (gid.to_string(), error.reason());
        if self.skipped.lock().insert(gid.clone(), reason.clone()).as_ref() != Some(&reason) {
            warn!("{gid} is passed over for the next one: {reason}");
        }
    }

    /// Returns the device of this name, and opens it if it is not open.
    pub(super) fn open(&self, name: &str) -> Result<Arc<RdmaDevice>, Unusable> {
        let forced = self.options.gpu_method.unwrap_or_default();
        let key = (name.to_owned(), self.options.busy, forced, std::process::id());
        // The lock of the map is released here; the lock of the entry is held while opening.
        let entry = Arc::clone(OPEN_DEVICES.lock().entry(key).or_default());
        let mut open = entry.lock();
        let is_alive = |device: &Arc<RdmaDevice>| device.handlers.ended.get().is_none();
        if let Some(device) = open.upgrade().filter(is_alive) {
            return Ok(device);
        }
        let devices = Library::load()?.devices()?;
        let device = devices.iter().find(|device| device.name() == name);
        let device = device.ok_or_else(|| Unusable::NotShown(name.to_owned()))?;
        let device = Arc::new(RdmaDevice::new(device, &self.options)?);
        *open = Arc::downgrade(&device);
        Ok(device)
    }
}

impl RdmaDevice {
    fn new(device: &Device, options: &Rdma) -> Result<Self, Unusable> {
        let busy = options.busy;
        let context = device.open()?;
        let channel = CompletionChannel::new(&context)?;
        let handlers = Arc::<Handlers>::default();
        let mut end =
            EndOfThread { handlers: Arc::clone(&handlers), reason: "its thread has ended".to_owned() };
        let polled = channel.clone();
        let run = move || {
            if let Err(error) = poll_until_closed(&polled, &end.handlers, busy) {
                warn!("the connections of an RDMA device end, and the next one opens it again: {error}");
                end.reason = match error.hint() {
                    Some(hint) => format!("{error}; {hint}"),
                    None => error.to_string(),
                };
            }
        };
        let thread = thread::Builder::new().name("multinet-rdma".to_owned()).spawn(run);
        let gpu_methods = GpuMethods::new(context.clone(), options.gpu_method.unwrap_or_default());
        Ok(Self {
            context,
            channel,
            handlers,
            next_queue: AtomicU64::new(FIRST_QUEUE),
            gpu_methods,
            thread: Some(thread.map_err(Unusable::Thread)?),
        })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Creates a completion queue with room for `capacity` completions, and returns its number too.
    pub(super) fn completion_queue(&self, capacity: u16) -> Result<(CompletionQueue, u64), Error> {
        let number = self.next_queue.fetch_add(1, Ordering::Relaxed);
        Ok((CompletionQueue::with_channel(&self.channel, number, capacity)?, number))
    }

    /// Registers the handler of the completion queue with this number. If the polling thread has
    /// ended, fails the handler at once.
    pub(super) fn register_handler(&self, number: u64, handler: Weak<dyn CompletionHandler>) {
        self.handlers.by_queue.lock().insert(number, handler.clone());
        // If the thread has ended before the insertion, its end did not reach this handler.
        if let (Some(reason), Some(handler)) = (self.handlers.ended.get(), handler.upgrade()) {
            handler.fail(reason);
        }
    }

    pub(super) fn remove_handler(&self, number: u64) {
        self.handlers.by_queue.lock().remove(&number);
    }
}

impl Handlers {
    fn get(&self, number: u64) -> Option<Arc<dyn CompletionHandler>> {
        self.by_queue.lock().get(&number).and_then(Weak::upgrade)
    }

    /// Fails the connection of the queue with this number. Other connections go on.
    fn fail_queue(&self, number: u64) {
        if let Some(handler) = self.get(number) {
            handler.fail("the device has given up the queue pair, or the queue of its completions");
        }
    }
}

fn gpu_method_from_environment() -> Forced {
    let Some(value) = std::env::var_os(GPU_METHOD_VARIABLE) else { return Forced::No };
    value.to_string_lossy().parse().unwrap_or_else(|error| {
        warn!("{GPU_METHOD_VARIABLE} is ignored: {error}");
        Forced::No
    })
}

/// Guard of the polling thread: fails all handlers when the thread ends, even by a panic.
struct EndOfThread {
    handlers: Arc<Handlers>,
    reason: String,
}

impl Drop for EndOfThread {
    fn drop(&mut self) {
        // `ended` is set before the handlers are read, so that a handler that is registered
        // meanwhile either is among them or sees the reason itself.
        let reason = self.handlers.ended.get_or_init(|| self.reason.clone());
        let all: Vec<_> = self.handlers.by_queue.lock().values().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|handler| handler.fail(reason));
    }
}

/// A completion queue that is polled at present: it has reported, and is not armed again.
struct ActiveQueue {
    handler: Arc<dyn CompletionHandler>,
    number: u64,
    last_completion: Instant,
}

/// Polls the completion queues that report, in turns, until the channel is closed.
fn poll_until_closed(channel: &CompletionChannel, handlers: &Handlers, busy: Duration) -> Result<(), Error> {
    let mut active: Vec<ActiveQueue> = Vec::new();
    let (mut rounds, mut is_idle) = (0_u32, false);
    loop {
        rounds = rounds.wrapping_add(1);
        let event = if active.is_empty() {
            channel.wait()?
        } else if !is_idle || rounds.is_multiple_of(EMPTY_ROUNDS_PER_CHECK) {
            channel.try_wait()?
        } else {
            ChannelEvent::Nothing
        };
        match event {
            ChannelEvent::Closed => return Ok(()),
            ChannelEvent::Completion(number) if !active.iter().any(|queue| queue.number == number) => {
                let last_completion = Instant::now();
                let handler = handlers.get(number);
                active.extend(handler.map(|handler| ActiveQueue { handler, number, last_completion }));
            }
            ChannelEvent::Failed(number) => handlers.fail_queue(number),
            ChannelEvent::Completion(_) | ChannelEvent::Nothing => {}
        }
        is_idle = true;
        active.retain_mut(|ActiveQueue { handler, last_completion, .. }| {
            if handler.poll() {
                *last_completion = Instant::now();
                is_idle = false;
                return true;
            }
            if last_completion.elapsed() < busy {
                return true;
            }
            // Poll once more after arming: a completion in between is not reported.
            handler.arm();
            handler.poll()
        });
        if is_idle && !active.is_empty() {
            // The thread that causes the next completion may need this processor.
            thread::yield_now();
        }
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        self.channel.close();
        // The last connection may have ended on the thread itself, which cannot join itself.
        if let Some(thread) = self.thread.take().filter(|it| it.thread().id() != thread::current().id()) {
            // A panic of the thread has failed all handlers already.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queues", self.by_queue.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Connection(Mutex<Option<String>>);

    impl CompletionHandler for Connection {
        fn poll(&self) -> bool {
            false
        }

        fn arm(&self) {}

        fn fail(&self, reason: &str) {
            self.0.lock().get_or_insert(reason.to_owned());
        }
    }

    #[test]
    fn a_failed_queue_ends_its_own_connection_only() {
        let handlers = Handlers::default();
        let connections = [FIRST_QUEUE, FIRST_QUEUE + 1].map(|number| {
            let connection = Arc::new(Connection::default());
            let handler: Weak<Connection> = Arc::downgrade(&connection);
            handlers.by_queue.lock().insert(number, handler);
            connection
        });
        // The queue of a probe, one that is gone, and the second connection's.
        [0, FIRST_QUEUE + 2, FIRST_QUEUE + 1].iter().for_each(|&number| handlers.fail_queue(number));
        let [one, other] = connections.map(|connection| connection.0.lock().take());
        assert_eq!(one, None);
        assert!(other.is_some_and(|reason| reason.starts_with("the device has given up the queue pair")));
    }
}
