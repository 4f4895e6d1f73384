//! RDMA devices that are in use, each with one thread that hears what completes on it.
//!
//! A queue that has something is looked at until it is empty, then armed, then looked at once more, as something may have come between; only then is it
//! left until its device reports. With a time to be busy for, it is looked at again and again for that long before it is armed: who waits for
//! an answer then gets it without an interrupt, at the price of a processor.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use multinet_memory::{Forced, Gpu, GpuError, GpuMemory, Method};
use multinet_verbs::{Channel, Context, Device, Error, Library, Queue, Report};
use tracing::warn;

use super::Unusable;
use super::gpu::{Methods, Place};
use super::lock;
use crate::gid;
use crate::transport::Rdma;

/// Has the GPU method forced for a program that does not do so itself.
const GPU_METHOD: &str = "MULTINET_GPU_METHOD";

/// So many times it looks in vain at the queues that it knows to be lively before it asks whether there are others: that is a system call.
const BETWEEN: u32 = 16;

/// The number of the first queue that somebody looks at. Those that are for trying out have none, which is zero.
const FIRST: u64 = 1;

/// What looks at the completions of one connection.
pub(crate) trait Completes: Send + Sync {
    /// Looks at some. Whether there were any.
    fn look(&self) -> bool;

    /// Has the next one reported.
    fn arm(&self);

    /// Nobody will look any more, for this reason.
    fn fail(&self, reason: &str);
}

/// The devices that a connector, or a listener, uses. Those of one program that use one device alike share its thread.
#[derive(Debug)]
pub(crate) struct Rails {
    pub(super) options: Rdma,
    /// Why rows of devices have been passed over, by their names: whoever is in the log need not be told again.
    skipped: Mutex<HashMap<String, String>>,
}

/// The devices of this program, by their use, each with a lock of its own: one that hangs when it is opened holds up no other.
static OPEN: Mutex<BTreeMap<Use, Arc<Mutex<Weak<Rail>>>>> = Mutex::new(BTreeMap::new());

/// A device, for how long its thread is busy, how it gets at GPUs, and the process: a child of fork has not its parent's thread.
type Use = (String, Duration, Forced, u32);

/// A device that is in use.
#[derive(Debug)]
pub(super) struct Rail {
    context: Context,
    channel: Channel,
    watched: Arc<Watched>,
    next: AtomicU64,
    methods: Methods,
    forced: Forced,
    thread: Option<thread::JoinHandle<()>>,
}

/// Those who look, by the number of their queue; once nobody hears for them any more, the reason.
#[derive(Default)]
struct Watched {
    by: Mutex<HashMap<u64, Weak<dyn Completes>>>,
    over: OnceLock<String>,
}

impl Rails {
    /// None yet.
    pub(crate) fn new(mut options: Rdma) -> Self {
        options.gpu_method.get_or_insert_with(from_environment);
        Self { options, skipped: Mutex::default() }
    }

    /// Says that another row is used than this one, which comes before it, unless that has been said.
    pub(super) fn skip(&self, place: &gid::Place, error: &Unusable) {
        let (place, reason) = (place.to_string(), error.reason());
        if lock(&self.skipped).insert(place.clone(), reason.clone()).as_ref() != Some(&reason) {
            warn!("{place} is passed over for the next one: {reason}");
        }
    }

    /// The device of this name, opened if nobody uses it yet.
    pub(super) fn open(&self, name: &str) -> Result<Arc<Rail>, Unusable> {
        let forced = self.options.gpu_method.unwrap_or_default();
        let key = (name.to_owned(), self.options.busy, forced, std::process::id());
        let entry = Arc::clone(lock(&OPEN).entry(key).or_default());
        let mut open = lock(&entry);
        let is_alive = |rail: &Arc<Rail>| rail.watched.over.get().is_none();
        if let Some(rail) = open.upgrade().filter(is_alive) {
            return Ok(rail);
        }
        let devices = Library::load()?.devices()?;
        let device = devices.iter().find(|device| device.name() == name);
        let device = device.ok_or_else(|| Unusable::NotShown(name.to_owned()))?;
        let rail = Arc::new(Rail::new(device, &self.options)?);
        *open = Arc::downgrade(&rail);
        Ok(rail)
    }
}

impl Rail {
    fn new(device: &Device, options: &Rdma) -> Result<Self, Unusable> {
        let busy = options.busy;
        let context = device.open()?;
        let channel = Channel::new(&context)?;
        let watched = Arc::<Watched>::default();
        let hearing = {
            let mut hearing =
                Hearing { watched: Arc::clone(&watched), end: "its thread has ended".to_owned() };
            let channel = channel.clone();
            move || {
                if let Err(error) = hear(&channel, &hearing.watched, busy) {
                    warn!("no more is heard of a device: {error}");
                    hearing.end = match error.hint() {
                        Some(hint) => format!("{error}; {hint}"),
                        None => error.to_string(),
                    };
                }
            }
        };
        let thread = thread::Builder::new().name("multinet-rdma".to_owned()).spawn(hearing);
        let thread = Some(thread.map_err(Unusable::Thread)?);
        let (next, methods, forced) =
            (AtomicU64::new(FIRST), Methods::default(), options.gpu_method.unwrap_or_default());
        Ok(Self { context, channel, watched, next, methods, forced, thread })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// How it gets at the memory of a GPU. The first time, it tries which way works, from this place: not for an async task.
    pub(super) fn method(&self, gpu: &Arc<dyn Gpu>, place: Place) -> Result<Method, GpuError> {
        self.methods.of(gpu, &self.context, place, self.forced)
    }

    /// Whether somebody insists on a method.
    pub(super) fn forced(&self) -> Forced {
        self.forced
    }

    /// Whether nobody has been told yet that connections' slots do not fit in this GPU: each of them may find it out anew.
    pub(super) fn is_first_complaint(&self, gpu: &dyn Gpu) -> bool {
        self.methods.is_first_complaint(gpu)
    }

    /// As [`method`](Self::method), for the GPU of this memory, but leaves what is not known to a thread of its own.
    pub(super) fn known_method(
        &self,
        memory: &Arc<dyn GpuMemory>,
        place: Place,
    ) -> Option<Result<Method, GpuError>> {
        self.methods.known(memory, &self.context, place, self.forced)
    }

    /// A queue for so many completions, with its number.
    pub(super) fn queue(&self, depth: u16) -> Result<(Queue, u64), Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok((Queue::reporting(&self.channel, number, depth)?, number))
    }

    /// From now on, whoever it is looks at the queue with this number.
    pub(super) fn watch(&self, number: u64, by: Weak<dyn Completes>) {
        lock(&self.watched.by).insert(number, by.clone());
        // Who comes too late is not among those that have been told.
        if let (Some(reason), Some(by)) = (self.watched.over.get(), by.upgrade()) {
            by.fail(reason);
        }
    }

    /// Nobody does any more.
    pub(super) fn forget(&self, number: u64) {
        lock(&self.watched.by).remove(&number);
    }
}

impl Watched {
    /// The device has given up the queue with this number, or a pair that uses it. Other connections go on.
    fn broken(&self, number: u64) {
        let by = lock(&self.by).get(&number).and_then(Weak::upgrade);
        if let Some(by) = by {
            by.fail("the device has given up the queue pair, or the queue of its completions");
        }
    }
}

fn from_environment() -> Forced {
    let Some(value) = std::env::var_os(GPU_METHOD) else { return Forced::No };
    value.to_string_lossy().parse().unwrap_or_else(|error| {
        warn!("{GPU_METHOD} is passed over: {error}");
        Forced::No
    })
}

/// The thread's stay. When it ends, even by a panic, whoever counted on it is told.
struct Hearing {
    watched: Arc<Watched>,
    end: String,
}

impl Drop for Hearing {
    fn drop(&mut self) {
        let reason = self.watched.over.get_or_init(|| self.end.clone());
        let all: Vec<_> = lock(&self.watched.by).values().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|by| by.fail(reason));
    }
}

/// One that has had something lately.
struct Lively {
    by: Arc<dyn Completes>,
    number: u64,
    last: Instant,
}

/// Looks at queues, each in its turn, until the channel is closed.
fn hear(channel: &Channel, watched: &Watched, busy: Duration) -> Result<(), Error> {
    let mut lively: Vec<Lively> = Vec::new();
    let (mut rounds, mut is_idle) = (0_u32, false);
    loop {
        rounds = rounds.wrapping_add(1);
        let report = if lively.is_empty() {
            channel.wait()?
        } else if !is_idle || rounds.is_multiple_of(BETWEEN) {
            channel.try_wait()?
        } else {
            Report::Nothing
        };
        match report {
            Report::Closed => return Ok(()),
            Report::Queue(number) if !lively.iter().any(|known| known.number == number) => {
                let by = lock(&watched.by).get(&number).and_then(Weak::upgrade);
                lively.extend(by.map(|by| Lively { by, number, last: Instant::now() }));
            }
            Report::Broken(number) => watched.broken(number),
            Report::Queue(_) | Report::Nothing => {}
        }
        is_idle = true;
        lively.retain_mut(|Lively { by, last, .. }| {
            if by.look() {
                *last = Instant::now();
                is_idle = false;
                return true;
            }
            if last.elapsed() < busy {
                return true;
            }
            by.arm();
            by.look()
        });
        if is_idle && !lively.is_empty() {
            // Whoever it waits for may need this processor.
            thread::yield_now();
        }
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        self.channel.close();
        // The last connection may have ended in the thread itself.
        if let Some(thread) = self.thread.take().filter(|it| it.thread().id() != thread::current().id()) {
            // It has nothing left to do, and a panic of its has been told.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queues", lock(&self.by).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Connection(Mutex<Option<String>>);

    impl Completes for Connection {
        fn look(&self) -> bool {
            false
        }

        fn arm(&self) {}

        fn fail(&self, reason: &str) {
            lock(&self.0).get_or_insert(reason.to_owned());
        }
    }

    #[test]
    fn what_has_broken_ends_its_connection_and_no_other() {
        let watched = Watched::default();
        let connections = [FIRST, FIRST + 1].map(|number| {
            let connection = Arc::new(Connection::default());
            let by: Weak<Connection> = Arc::downgrade(&connection);
            lock(&watched.by).insert(number, by);
            connection
        });
        // One that was for trying out, one that has gone, and the second one.
        [0, FIRST + 2, FIRST + 1].iter().for_each(|&number| watched.broken(number));
        let [one, other] = connections.map(|connection| lock(&connection.0).take());
        assert_eq!(one, None);
        assert!(other.is_some_and(|reason| reason.starts_with("the device has given up the queue pair")));
    }
}
