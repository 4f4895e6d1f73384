//! The only writer of [`Answers`]. It adds and removes services so that at every moment, a name
//! exists exactly if it owns records or a name below it does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use multinet_runtime::ObjectKey;
use tracing::{debug, warn};

use crate::store::answers::Answers;
use crate::store::build::ServiceAnswers;
use crate::store::index::Created;
use crate::store::journal::{Journal, JournalLimits};
use crate::store::lookup::LookupResult;
use crate::store::name::{self, MAX_NAME, Presented, reverse_name, wire_label};
use crate::store::name_tree::NameTree;
use crate::store::records::{self, RecordItem, RecordWriter};
use crate::store::reverse::ServiceKey;
use crate::store::rrset::{Record, rtype};
use crate::store::zone::{SVC, Zone, ZoneKind};

/// Applies changes of services to the [`Answers`], which it alone writes, and to the journal.
#[derive(Debug)]
pub(crate) struct Publisher {
    answers: Arc<Answers>,
    /// Changes of all zones for incremental transfers; `None` unless enabled.
    journal: Option<Journal>,
    /// The services that have the labels of a vertex.
    claims: BTreeSet<VertexClaim>,
}

/// A service that has the labels of a vertex. Of several, the first has the vertex's name: the
/// oldest, then the one whose name sorts first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct VertexClaim {
    /// Key of the vertex: `<vertex>.<pipeline>.<namespace>` in wire format.
    vertex: ServiceKey,
    created: Created,
    name: Box<str>,
    service: ServiceKey,
}

/// The addresses whose PTR records differ between two versions of a service, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
struct PointerChanges {
    /// Addresses that only the old version publishes, and those that only the new one does.
    gone: Vec<IpAddr>,
    come: Vec<IpAddr>,
    /// Addresses whose PTR records have a new target, time to live, or age.
    changed: Vec<IpAddr>,
}

impl Publisher {
    /// Makes a publisher that has published nothing yet.
    pub(crate) fn new(answers: Arc<Answers>) -> Self {
        Self { answers, journal: None, claims: BTreeSet::new() }
    }

    /// Starts to record changes in a journal. Must be called before anything is published.
    pub(crate) fn enable_journal(&mut self, limits: JournalLimits) {
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

    /// Returns the journal of changes; `None` unless it was enabled.
    pub(crate) fn journal(&mut self) -> Option<&mut Journal> {
        self.journal.as_mut()
    }

    /// Replaces the answers of some services; a service without answers is withdrawn. The serial
    /// rises once if any answer has changed.
    pub(crate) fn publish(
        &mut self,
        services: impl IntoIterator<Item = (ObjectKey, Option<ServiceAnswers>)>,
    ) {
        let mut changed = false;
        for (key, answers) in services {
            // A service whose name DNS cannot express has no names.
            if let Some(service) = service_key(&key) {
                let is_there = answers.is_some();
                if self.replace(&key.name, service, answers) {
                    changed = true;
                    debug!(service = %key, is_there, "answers of a service changed");
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

    /// Replaces a service and reports the changes to the journal. Tells whether any answer has
    /// changed.
    fn replace(&mut self, name: &str, service: ServiceKey, now: Option<ServiceAnswers>) -> bool {
        let now = now.map(Arc::new);
        let before = self.answers.services.map.get(&service).map(|known| Arc::clone(&known));
        if before == now {
            // The answers are equal, but replacing them frees the old slices.
            if let Some(now) = &now {
                self.answers.services.insert(&service, now);
                self.name_vertices(name, &service, before.as_deref(), Some(now));
            }
            return false;
        }
        let pointers = self.pointers(&service, before.as_deref(), now.as_deref());
        self.journal_pointers(&pointers, Journal::remove);
        match &now {
            Some(now) => self.insert(&service, (before.as_deref(), now), &pointers),
            None => self.withdraw(&service, before.as_deref(), &pointers),
        }
        self.journal_pointers(&pointers, Journal::add);
        self.journal_records(ZoneKind::Services, &service, before.as_deref(), now.as_deref());
        self.name_vertices(name, &service, before.as_deref(), now.as_deref());
        true
    }

    /// Updates the names of the vertices whose labels a service had before and has now. The service
    /// itself has been replaced already.
    fn name_vertices(
        &mut self,
        name: &str,
        service: &ServiceKey,
        before: Option<&ServiceAnswers>,
        now: Option<&ServiceAnswers>,
    ) {
        if self.answers.zones().vertices().is_empty() {
            return;
        }
        let namespace = name::parent(service).unwrap_or_default();
        let claim = |answers: &ServiceAnswers| {
            let vertex = [answers.vertex.as_deref()?, namespace].concat().into();
            let service = Arc::clone(service);
            Some(VertexClaim { vertex, created: answers.created, name: name.into(), service })
        };
        let (before, now) = (before.and_then(claim), now.and_then(claim));
        if before != now {
            if let Some(before) = &before {
                self.claims.remove(before);
            }
            self.claims.extend(now.clone());
        }
        let is_new = now.as_ref().map(|now| &now.vertex) != before.as_ref().map(|before| &before.vertex);
        if let Some(now) = now {
            if is_new {
                self.log_if_contested(&now);
            }
            self.name_vertex(&now.vertex);
        }
        if let Some(before) = before.filter(|_| is_new) {
            self.name_vertex(&before.vertex);
        }
    }

    /// Returns the services that have the labels of a vertex, the one with its name first.
    fn claims_of(&self, vertex: &ServiceKey) -> impl Iterator<Item = &VertexClaim> {
        let first = VertexClaim {
            vertex: Arc::clone(vertex),
            created: Created::EARLIEST,
            name: Box::default(),
            service: Arc::default(),
        };
        self.claims.range(first..).take_while(|claim| claim.vertex == *vertex)
    }

    /// Gives a vertex's name to the first of the services that have its labels.
    fn name_vertex(&mut self, vertex: &ServiceKey) {
        let answers = Arc::clone(&self.answers);
        let of = |tree: &NameTree, key: &ServiceKey| tree.map.get(key).map(|known| Arc::clone(&known));
        let before = of(&answers.vertices, vertex);
        let now = self.claims_of(vertex).next().and_then(|claim| of(&answers.services, &claim.service));
        match &now {
            Some(now) => answers.vertices.insert(vertex, now),
            None => answers.vertices.remove(vertex),
        }
        if before.as_ref().map(Arc::as_ptr) != now.as_ref().map(Arc::as_ptr) {
            self.journal_records(ZoneKind::Vertices, vertex, before.as_deref(), now.as_deref());
        }
    }

    /// Logs a warning if a service has the labels of a vertex that another service has, too.
    fn log_if_contested(&self, claim: &VertexClaim) {
        let mut claims = self.claims_of(&claim.vertex);
        let (Some(first), Some(second)) = (claims.next(), claims.next()) else { return };
        let other = if first == claim { second } else { first };
        let vertex = Presented(&claim.vertex).to_string();
        warn!(
            vertex,
            "the services {} and {} have the labels of one vertex: {} has its name; give each vertex one service",
            claim.name,
            other.name,
            first.name
        );
    }

    /// Reports every PTR record of some addresses to the journal. Called before and after a change,
    /// so that the journal sees the difference.
    fn journal_pointers(&mut self, pointers: &PointerChanges, note: fn(&mut Journal, Record<'_>)) {
        let Some(journal) = &mut self.journal else { return };
        for &address in [&pointers.gone, &pointers.come, &pointers.changed].into_iter().flatten() {
            let owner = reverse_name(address);
            self.answers.look_up_address(address, usize::MAX, |found| {
                if let LookupResult::Pointers(ttl, targets) = *found {
                    for target in targets {
                        let data = &target.concat();
                        note(journal, Record { owner: owner.as_wire(), rtype: rtype::PTR, ttl, data });
                    }
                }
            });
        }
    }

    /// Reports the records that were removed or added at a service's key in all zones of a kind to
    /// the journal. It compares all items, but makes records only of those that differ.
    fn journal_records(
        &mut self,
        kind: ZoneKind,
        key: &[u8],
        before: Option<&ServiceAnswers>,
        now: Option<&ServiceAnswers>,
    ) {
        let Some(journal) = &mut self.journal else { return };
        let zones = self.answers.zones().iter().filter(|zone| zone.kind() == kind);
        let bases: Vec<Vec<u8>> = zones.map(|zone| zone.base(key)).collect();
        let mut writers: Vec<RecordWriter<'_>> = bases.iter().map(|base| RecordWriter::new(base)).collect();
        let items = |version: Option<_>| version.into_iter().flat_map(records::items);
        records::merge(items(before), items(now), RecordItem::key, |gone, come| {
            if gone.zip(come).is_some_and(|(gone, come)| gone.has_same_records(&come)) {
                return;
            }
            for writer in &mut writers {
                gone.iter().for_each(|item| writer.records(item, &mut |record| journal.remove(record)));
                come.iter().for_each(|item| writer.records(item, &mut |record| journal.add(record)));
            }
        });
    }

    /// Returns the addresses whose PTR records change when a service changes from `before` to
    /// `now`.
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
        (before, now): (Option<&ServiceAnswers>, &Arc<ServiceAnswers>),
        pointers: &PointerChanges,
    ) {
        let answers = &self.answers;
        // Queries read meanwhile. The service is replaced before any address leads to it, and new
        // addresses are added before old ones are removed, so that no query finds a gap.
        answers.services.insert(service, now);
        // Use the key that the map has already, so that memory holds only one copy.
        let service = answers
            .services
            .map
            .get(service)
            .map_or_else(|| Arc::clone(service), |entry| Arc::clone(entry.key()));
        let PointerChanges { gone, come, changed } = pointers;
        answers.addresses.replace(come, &service, None, Some(now.created));
        let Some(before) = before else { return };
        if before.created != now.created {
            answers.addresses.replace(changed, &service, Some(before.created), Some(now.created));
        }
        answers.addresses.replace(gone, &service, Some(before.created), None);
    }

    fn withdraw(&self, service: &ServiceKey, before: Option<&ServiceAnswers>, pointers: &PointerChanges) {
        let Some(before) = before else { return };
        let answers = &self.answers;
        // The addresses may lead to the missing service for a moment; queries skip it then.
        answers.services.remove(service);
        answers.addresses.replace(&pointers.gone, service, Some(before.created), None);
    }

    /// Returns every service that the names in a zone of this kind belong to. Publishing takes
    /// `&mut self`, so the result is one version of all zones.
    pub(crate) fn services(&self, kind: ZoneKind) -> Vec<(ServiceKey, Arc<ServiceAnswers>)> {
        match kind {
            ZoneKind::Vertices => self.answers.vertices.all(),
            ZoneKind::Services | ZoneKind::Reverse => self.answers.services.all(),
        }
    }
}

/// Returns the addresses of a service that have a PTR record, with the label that it points at,
/// sorted by address. Addresses are left out if the target below `apex` would be too long for DNS.
pub(crate) fn pointers<'a>(
    service: &[u8],
    answers: &'a ServiceAnswers,
    apex: &[u8],
) -> impl Iterator<Item = (IpAddr, &'a [u8])> {
    let most = MAX_NAME.saturating_sub(service.len() + SVC.len() + apex.len());
    answers.all().pointers().filter(move |(_, label)| label.len() <= most)
}

/// Returns `<service>.<namespace>` in wire format, lowercased. Returns `None` if DNS cannot express
/// it.
fn service_key(key: &ObjectKey) -> Option<ServiceKey> {
    Some([wire_label(&key.name)?, wire_label(&key.namespace)?].concat().into())
}

#[cfg(test)]
mod tests;
