//! The only writer of [`Answers`]: puts services in and takes them out, so that at every moment a name exists
//! exactly if it owns records, or a name below it does.

use std::net::IpAddr;
use std::sync::Arc;

use multinet_runtime::ObjectKey;
use tracing::debug;

use crate::store::answers::{Answers, SVC};
use crate::store::build::{ServiceAnswers, wire_label};
use crate::store::index::Created;
use crate::store::journal::{Journal, JournalLimits};
use crate::store::lookup::Found;
use crate::store::name::{MAX_NAME, Name, reverse_name};
use crate::store::records::{self, Item, RecordWriter};
use crate::store::reverse::ServiceKey;
use crate::store::rrset::{Record, rtype};
use crate::store::zone::Zone;
use crate::sync::Entry;

/// The only writer of [`Answers`].
#[derive(Debug)]
pub struct Publisher {
    answers: Arc<Answers>,
    /// What changes, if anybody may want to know.
    journal: Option<Journal>,
}

/// The addresses whose reverse names another version of a service changes, ascending.
#[derive(Debug, Default, PartialEq, Eq)]
struct PointerChanges {
    /// Those that only the version before points from, and those that only the new one does.
    gone: Vec<IpAddr>,
    come: Vec<IpAddr>,
    /// Those that point from then on to something else, for another time, or with another age.
    changed: Vec<IpAddr>,
}

impl Publisher {
    /// A publisher that has published nothing yet.
    pub fn new(answers: Arc<Answers>) -> Self {
        Self { answers, journal: None }
    }

    /// Keeps a journal from now on; nothing may have been published yet.
    pub fn enable_journal(&mut self, limits: JournalLimits) {
        let zones = self.answers.zones();
        let mut journal = Journal::new(zones.iter().map(|zone| zone.apex().clone()), limits);
        for (name, node) in zones.iter().flat_map(Zone::fixed_names) {
            node.records(&name).for_each(|record| journal.add(record));
        }
        for zone in zones.iter() {
            for (name, node) in zones.delegations(zone) {
                node.records(&name).for_each(|record| journal.add_delegated(zone.apex(), record));
            }
        }
        self.journal = Some(journal);
    }

    /// The journal, if one is kept.
    pub fn journal(&mut self) -> Option<&mut Journal> {
        self.journal.as_mut()
    }

    /// What is being published to.
    pub fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// Replaces all that each of some services says; without answers, a service is withdrawn. The serial rises
    /// once, if any answer changed.
    pub fn publish(&mut self, services: impl IntoIterator<Item = (ObjectKey, Option<ServiceAnswers>)>) {
        let mut changed = false;
        for (key, answers) in services {
            // A name that DNS cannot express is nobody's.
            if let Some((service, namespace)) = service_key(&key) {
                let is_there = answers.is_some();
                if self.replace(service, &namespace, answers) {
                    changed = true;
                    debug!(service = %key, is_there, "the answers of a service have changed");
                }
            }
        }
        if changed {
            let before = self.answers.serial();
            self.answers.raise_serial();
            if let Some(journal) = &mut self.journal {
                journal.commit(before, self.answers.serial());
            }
        }
    }

    /// Replaces a service, and tells the journal; whether any answer changed.
    fn replace(&mut self, service: ServiceKey, namespace: &[u8], now: Option<ServiceAnswers>) -> bool {
        let now = now.map(Arc::new);
        let before = self.answers.services.get(&service).map(|known| Arc::clone(&known));
        if before == now {
            // The slices that the older one is made of are not to stay in memory.
            now.map(|now| self.answers.services.insert(service, now));
            return false;
        }
        let pointers = self.pointers(&service, before.as_deref(), now.as_deref());
        self.journal_pointers(&pointers, Journal::remove);
        match &now {
            Some(now) => self.insert(&service, namespace, (before.as_deref(), now), &pointers),
            None => self.withdraw(&service, namespace, before.as_deref(), &pointers),
        }
        self.journal_pointers(&pointers, Journal::add);
        self.journal_records(&service, before.as_deref(), now.as_deref());
        true
    }

    /// Tells the journal of every PTR record of some addresses.
    fn journal_pointers(&mut self, pointers: &PointerChanges, note: fn(&mut Journal, Record<'_>)) {
        let Some(journal) = &mut self.journal else { return };
        for &address in [&pointers.gone, &pointers.come, &pointers.changed].into_iter().flatten() {
            let owner = reverse_name(address);
            self.answers.look_up_address(address, usize::MAX, |found| {
                if let Found::Pointers(ttl, targets) = *found {
                    for target in targets {
                        let data = &target.concat();
                        note(journal, Record { owner: owner.as_wire(), rtype: rtype::PTR, ttl, data });
                    }
                }
            });
        }
    }

    /// Tells the journal which records of a service are gone and which have come. All items are compared; records are
    /// made only of those that differ.
    fn journal_records(
        &mut self,
        service: &[u8],
        before: Option<&ServiceAnswers>,
        now: Option<&ServiceAnswers>,
    ) {
        let Some(journal) = &mut self.journal else { return };
        let base = |zone: &Name| [service, SVC, zone.as_wire()].concat();
        let bases: Vec<Vec<u8>> = self.answers.zones().forward().iter().map(base).collect();
        let mut writers: Vec<RecordWriter<'_>> = bases.iter().map(|base| RecordWriter::new(base)).collect();
        let items = |version: Option<_>| version.into_iter().flat_map(records::items);
        records::merge(items(before), items(now), Item::key, |gone, come| {
            if gone.zip(come).is_some_and(|(gone, come)| gone.has_same_records(&come)) {
                return;
            }
            for writer in &mut writers {
                gone.iter().for_each(|item| writer.records(item, &mut |record| journal.remove(record)));
                come.iter().for_each(|item| writer.records(item, &mut |record| journal.add(record)));
            }
        });
    }

    /// The addresses whose reverse names change with a service.
    fn pointers<'a>(
        &self,
        service: &[u8],
        before: Option<&'a ServiceAnswers>,
        now: Option<&'a ServiceAnswers>,
    ) -> PointerChanges {
        let apex = self.answers.zones().forward()[0].as_wire();
        let is_reversed = |(address, ..): &(IpAddr, _, _, _)| self.answers.reverse_zone_of(address).is_some();
        let pointers = |version: Option<_>| {
            let with_rest = |version: &'a ServiceAnswers| {
                let ServiceAnswers { ttl, created, .. } = *version;
                pointers(service, version, apex).map(move |(address, label)| (address, label, ttl, created))
            };
            version.into_iter().flat_map(with_rest).filter(is_reversed)
        };
        let mut all = PointerChanges::default();
        let address = |&(address, ..): &(IpAddr, &[u8], u32, Created)| address;
        records::merge(pointers(before), pointers(now), address, |gone, come| match (gone, come) {
            (Some((address, ..)), None) => all.gone.push(address),
            (None, Some((address, ..))) => all.come.push(address),
            (Some(gone), Some(come)) if gone != come => all.changed.push(come.0),
            _ => {}
        });
        all
    }

    fn insert(
        &self,
        service: &ServiceKey,
        namespace: &[u8],
        (before, now): (Option<&ServiceAnswers>, &Arc<ServiceAnswers>),
        pointers: &PointerChanges,
    ) {
        let answers = &self.answers;
        if before.is_none() {
            *answers.namespaces.entry(namespace.into()).or_default() += 1;
        }
        answers.services.insert(Arc::clone(service), Arc::clone(now));
        // The key that is there already, if there is one, so that there are not two of them in memory.
        let service = answers
            .services
            .get(service)
            .map_or_else(|| Arc::clone(service), |entry| Arc::clone(entry.key()));
        let PointerChanges { gone, come, changed } = pointers;
        answers.addresses.insert(come.iter().copied(), now.created, &service);
        let Some(before) = before else { return };
        if before.created != now.created {
            let ages = (before.created, now.created);
            answers.addresses.reorder(changed.iter().copied(), ages, &service);
        }
        answers.addresses.remove(gone.iter().copied(), before.created, &service);
    }

    fn withdraw(
        &self,
        service: &ServiceKey,
        namespace: &[u8],
        before: Option<&ServiceAnswers>,
        pointers: &PointerChanges,
    ) {
        let Some(before) = before else { return };
        let answers = &self.answers;
        answers.services.remove(service);
        answers.addresses.remove(pointers.gone.iter().copied(), before.created, service);
        if let Entry::Occupied(mut services) = answers.namespaces.entry(namespace.into()) {
            match services.get() {
                0 | 1 => drop(services.remove()),
                _ => *services.get_mut() -= 1,
            }
        }
    }

    /// Every service that has names. Nothing is published meanwhile, since publishing takes `&mut self`, so
    /// this is one version of all zones.
    pub fn services(&self) -> Vec<(ServiceKey, Arc<ServiceAnswers>)> {
        let services = self.answers.services.iter();
        services.map(|entry| (Arc::clone(entry.key()), Arc::clone(entry.value()))).collect()
    }
}

/// The addresses of a service whose reverse names have a target below `apex`, and the label of that; ascending. A
/// target whose name is too long for DNS is none.
pub fn pointers<'a>(
    service: &[u8],
    answers: &'a ServiceAnswers,
    apex: &[u8],
) -> impl Iterator<Item = (IpAddr, &'a [u8])> {
    let most = MAX_NAME.saturating_sub(service.len() + SVC.len() + apex.len());
    answers.all.pointers(&answers.slices).filter(move |(_, label)| label.len() <= most)
}

/// `<service>.<namespace>` and `<namespace>` in wire format, lowercased.
fn service_key(key: &ObjectKey) -> Option<(ServiceKey, Box<[u8]>)> {
    let namespace = wire_label(&key.namespace)?;
    let service = wire_label(&key.name)?;
    Some((service.iter().chain(&namespace).copied().collect(), namespace))
}

#[cfg(test)]
mod tests;
