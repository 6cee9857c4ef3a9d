"""The requests that `record` and `replay` send, and the responses: fields by version, in a short notation.

A line is a field: name, type, then what applies: `?` may be null, `v3+` or `v8-10` the versions that have it, `=-1` its default, `tag0` a
tagged field. A type of `[]` is an array of the fields that are indented below it. The fields are those of Kafka's message definitions
(4.3.0); which of them brokers really take is in docs/decisions/0016-live-kafka.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rawlog.formats.kafka.codec import Codec, codec
from rawlog.formats.kafka.schema import Schema, SchemaField, Versions

MOST = 0x7FFF
_ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "records": b"", "uuid": bytes(16)}


@dataclass(frozen=True, slots=True)
class Api:
    """One request and its response: the versions that we speak, and from which on they are flexible."""

    name: str
    key: int
    versions: Versions
    request: Schema
    response: Schema

    def request_codec(self, version: int) -> Codec:
        return codec(self.request, version)

    def response_codec(self, version: int) -> Codec:
        return codec(self.response, version)

    def is_flexible(self, version: int) -> bool:
        """Whether the headers have tagged fields."""
        return version in self.request.flexible


def _versions(text: str) -> Versions:
    low, dash, high = text.partition("-")
    if text.endswith("+"):
        return Versions(int(text[:-1]), MOST)
    return Versions(int(low), int(high) if dash else int(low))


def _fields(lines: list[tuple[int, str]], depth: int) -> Iterator[SchemaField]:
    while lines and lines[0][0] == depth:
        name, type, *more = lines.pop(0)[1].split()
        struct = tuple(_fields(lines, lines[0][0])) if lines and lines[0][0] > depth else None
        is_array, type = type.startswith("[]"), type.removeprefix("[]") or name
        versions, nullable, tagged, tag = Versions(0, MOST), Versions(1, 0), Versions(1, 0), None
        default = [] if is_array else {} if struct is not None else _ZEROS.get(type, 0)
        for word in more:
            if word == "?":
                nullable = Versions(0, MOST)
            elif word.startswith("v"):
                versions = _versions(word[1:])
            elif word.startswith("tag"):
                tag, tagged = int(word[3:]), Versions(0, MOST)
            else:
                assert word.startswith("="), word
                default = None if word == "=null" else int(word[1:])
        yield SchemaField(name, type, is_array, versions, nullable, tagged, tag, default, struct)


def _schema(name: str, versions: Versions, flexible: Versions, text: str) -> Schema:
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
    made = Schema(name, versions, flexible, tuple(_fields(lines, lines[0][0]) if lines else ()))
    assert not lines, lines
    return made


def _api(name: str, key: int, versions: str, flexible: int, request: str, response: str) -> Api:
    spoken, flexible_from = _versions(versions), Versions(flexible, MOST)
    return Api(
        name,
        key,
        spoken,
        _schema(f"{name} request", spoken, flexible_from, request),
        _schema(f"{name} response", spoken, flexible_from, response),
    )


API_VERSIONS = _api(
    "ApiVersions", 18, "0-3", 3,
    """
    clientSoftwareName string v3+
    clientSoftwareVersion string v3+
    """,
    """
    errorCode int16
    apiKeys []
      apiKey int16
      minVersion int16
      maxVersion int16
    throttleTimeMs int32 v1+
    """,
)  # fmt: skip

METADATA = _api(
    "Metadata", 3, "8-13", 9,
    """
    topics [] ?
      topicId uuid v10+
      name string ?
    allowAutoTopicCreation bool
    includeClusterAuthorizedOperations bool v8-10
    includeTopicAuthorizedOperations bool
    """,
    """
    throttleTimeMs int32
    brokers []
      nodeId int32
      host string
      port int32
      rack string ?
    clusterId string ?
    controllerId int32
    topics []
      errorCode int16
      name string ?
      topicId uuid v10+
      isInternal bool
      partitions []
        errorCode int16
        partitionIndex int32
        leaderId int32
        leaderEpoch int32
        replicaNodes []int32
        isrNodes []int32
        offlineReplicas []int32
      topicAuthorizedOperations int32
    clusterAuthorizedOperations int32 v8-10
    errorCode int16 v13+
    """,
)  # fmt: skip

LIST_OFFSETS = _api(
    "ListOffsets", 2, "5-9", 6,
    """
    replicaId int32 =-1
    isolationLevel int8
    topics []
      name string
      partitions []
        partitionIndex int32
        currentLeaderEpoch int32 =-1
        timestamp int64
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      partitions []
        partitionIndex int32
        errorCode int16
        timestamp int64
        offset int64
        leaderEpoch int32
    """,
)  # fmt: skip

FETCH = _api(
    "Fetch", 1, "11-18", 12,
    """
    replicaId int32 v0-14 =-1
    maxWaitMs int32
    minBytes int32
    maxBytes int32
    isolationLevel int8
    sessionId int32
    sessionEpoch int32 =-1
    topics []
      topic string v0-12
      topicId uuid v13+
      partitions []
        partition int32
        currentLeaderEpoch int32 =-1
        fetchOffset int64
        lastFetchedEpoch int32 v12+ =-1
        logStartOffset int64 =-1
        partitionMaxBytes int32
    forgottenTopicsData []
      topic string v0-12
      topicId uuid v13+
      partitions []int32
    rackId string
    """,
    """
    throttleTimeMs int32
    errorCode int16
    sessionId int32
    responses []
      topic string v0-12
      topicId uuid v13+
      partitions []
        partitionIndex int32
        errorCode int16
        highWatermark int64
        lastStableOffset int64
        logStartOffset int64
        divergingEpoch end v12+ tag0
          epoch int32 =-1
          endOffset int64 =-1
        currentLeader leader v12+ tag1
          leaderId int32 =-1
          leaderEpoch int32 =-1
        abortedTransactions [] ?
          producerId int64
          firstOffset int64
        preferredReadReplica int32
        records records ?
    """,
)  # fmt: skip

PRODUCE = _api(
    "Produce", 0, "8-13", 9,
    """
    transactionalId string ? =null
    acks int16 =-1
    timeoutMs int32
    topicData []
      name string v0-12
      topicId uuid v13+
      partitionData []
        index int32
        records records ?
    """,
    """
    responses []
      name string v0-12
      topicId uuid v13+
      partitionResponses []
        index int32
        errorCode int16
        baseOffset int64
        logAppendTimeMs int64
        logStartOffset int64
        recordErrors []
          batchIndex int32
          batchIndexErrorMessage string ?
        errorMessage string ?
        currentLeader leader v10+ tag0
          leaderId int32 =-1
          leaderEpoch int32 =-1
    throttleTimeMs int32
    """,
)  # fmt: skip

INIT_PRODUCER_ID = _api(
    "InitProducerId", 22, "1-4", 2,
    """
    transactionalId string ? =null
    transactionTimeoutMs int32
    producerId int64 v3+ =-1
    producerEpoch int16 v3+ =-1
    """,
    """
    throttleTimeMs int32
    errorCode int16
    producerId int64
    producerEpoch int16
    """,
)  # fmt: skip

FIND_COORDINATOR = _api(
    "FindCoordinator", 10, "2-3", 3,
    """
    key string
    keyType int8
    """,
    """
    throttleTimeMs int32
    errorCode int16
    errorMessage string ?
    nodeId int32
    host string
    port int32
    """,
)  # fmt: skip

ADD_PARTITIONS_TO_TXN = _api(
    "AddPartitionsToTxn", 24, "2-3", 3,
    """
    transactionalId string
    producerId int64
    producerEpoch int16
    topics []
      name string
      partitions []int32
    """,
    """
    throttleTimeMs int32
    results []
      name string
      results []
        partitionIndex int32
        errorCode int16
    """,
)  # fmt: skip

END_TXN = _api(
    "EndTxn", 26, "2-3", 3,
    """
    transactionalId string
    producerId int64
    producerEpoch int16
    committed bool
    """,
    """
    throttleTimeMs int32
    errorCode int16
    """,
)  # fmt: skip

OFFSET_COMMIT = _api(
    "OffsetCommit", 8, "7-8", 8,
    """
    groupId string
    generationId int32 =-1
    memberId string
    groupInstanceId string ? =null
    topics []
      name string
      partitions []
        partitionIndex int32
        committedOffset int64
        committedLeaderEpoch int32 =-1
        committedMetadata string ?
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      partitions []
        partitionIndex int32
        errorCode int16
    """,
)  # fmt: skip

OFFSET_FETCH = _api(
    "OffsetFetch", 9, "5-7", 6,
    """
    groupId string
    topics [] ?
      name string
      partitionIndexes []int32
    requireStable bool v7+
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      partitions []
        partitionIndex int32
        committedOffset int64
        committedLeaderEpoch int32
        metadata string ?
        errorCode int16
    errorCode int16
    """,
)  # fmt: skip

CREATE_TOPICS = _api(
    "CreateTopics", 19, "4-6", 5,
    """
    topics []
      name string
      numPartitions int32
      replicationFactor int16
      assignments []
        partitionIndex int32
        brokerIds []int32
      configs []
        name string
        value string ?
    timeoutMs int32
    validateOnly bool
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      errorCode int16
      errorMessage string ?
      topicConfigErrorCode int16 v5+ tag0
      numPartitions int32 v5+ =-1
      replicationFactor int16 v5+ =-1
      configs [] v5+ ?
        name string
        value string ?
        readOnly bool
        configSource int8
        isSensitive bool
    """,
)  # fmt: skip

DESCRIBE_CONFIGS = _api(
    "DescribeConfigs", 32, "1-4", 4,
    """
    resources []
      resourceType int8
      resourceName string
      configurationKeys []string ?
    includeSynonyms bool
    includeDocumentation bool v3+
    """,
    """
    throttleTimeMs int32
    results []
      errorCode int16
      errorMessage string ?
      resourceType int8
      resourceName string
      configs []
        name string
        value string ?
        readOnly bool
        configSource int8
        isSensitive bool
        synonyms []
          name string
          value string ?
          source int8
        configType int8 v3+
        documentation string ? v3+
    """,
)  # fmt: skip

SASL_HANDSHAKE = _api(
    "SaslHandshake", 17, "1-1", 2,
    """
    mechanism string
    """,
    """
    errorCode int16
    mechanisms []string
    """,
)  # fmt: skip

SASL_AUTHENTICATE = _api(
    "SaslAuthenticate", 36, "1-2", 2,
    """
    authBytes bytes
    """,
    """
    errorCode int16
    errorMessage string ?
    authBytes bytes
    sessionLifetimeMs int64
    """,
)  # fmt: skip

APIS = (
    API_VERSIONS, METADATA, LIST_OFFSETS, FETCH, PRODUCE, INIT_PRODUCER_ID, FIND_COORDINATOR, ADD_PARTITIONS_TO_TXN, END_TXN,
    OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPICS, DESCRIBE_CONFIGS, SASL_HANDSHAKE, SASL_AUTHENTICATE,
)  # fmt: skip
