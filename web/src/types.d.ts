// The data that the library writes into a page, and the types that modules share.
import type { PALETTES } from "./colour.js";
import type { makeTip } from "./draw.js";
import type { read } from "./data.js";
import type { readCorpus } from "./corpus.js";
import type { readAnswer } from "./answer-data.js";
import type { truths } from "./answer-truth.js";

export type Floats = Float64Array | Float32Array;
export type Palette = typeof PALETTES.light;
export type Tip = ReturnType<typeof makeTip>;
/** A child for `el` and `svg`; null, undefined and false are skipped. */
export type Child = Node | string | number | false | null | undefined | Child[];
export type Attributes = Record<string, string | number | boolean | null | undefined | ((event: any) => unknown)>;
/** A row of an exported table. */
export type Cells = (string | number | boolean | null | undefined)[];
/** Names in the state that have changed; null to redraw everything. */
export type Changed = Set<string> | null;

export interface State<Values> {
  get(): Values;
  set(changes: Partial<Values>): void;
  listen(listener: (changed: Set<string>) => void): void;
  /** The address's fragment, with the selection and what else is in it. */
  fragment(): string;
  /** The whole selection as text for files, and the selection of a text. */
  text(): string;
}

// The document of one text, as view/document.py writes it.

export interface Packed {
  type: "f4" | "f8" | "u1";
  shape: number[];
  data: string;
}
export interface Rounded {
  type: "rounded";
  steps: number;
  data: string;
  scales: Packed;
}
/** Values [layer, query, input] of some queries. */
export interface Table<Values> {
  queries: number[];
  values: Values;
}
/** A step of the graph before its weights are unpacked. */
export interface StepShape {
  rows: number;
  cols: number;
  residual: boolean;
}
export interface Matrix<Values = Floats> {
  rows: number;
  cols: number;
  values: Values;
}
export type Step = StepShape & Matrix;
export interface Unit {
  tokens: string[];
  special: boolean[];
  parts: string[];
  groups: number[][] | null;
  /** Of each layer. */
  sinks?: number[][];
}
export interface Importance {
  name: string;
  /** null if there was no time to compute it */
  values: (number | null)[];
  answer: { name: string } | null;
  settings: { by?: string; computed?: { count: number; of: number; seconds: number; first: string | null } };
  reliability?: string[];
  /** Shares of tokens that were left out of the values, by unit and token. */
  aside?: Record<string, Record<number, number>>;
}
/** What the answer loses without each sentence, from its first token to its last; null if not measured. */
export interface Sentences {
  texts: string[];
  positions: [number, number][];
  values: (number | null)[];
  answer: { name: string };
  of: string;
  reliability: string[];
}
/** The strongest edges from tokens up to the answer: layer, query, key, what it carries, and its part of what is below. */
export interface Origin {
  top: number[];
  carried: number;
  edges: [number, number, number, number, number][];
}
export interface TextDocument {
  format: string;
  version: number;
  text: string;
  model: Record<string, any>;
  prediction: { kind: string; top: [string, number][] } | null;
  units: Record<string, Unit>;
  queries: string[] | null;
  /** Of a sentence-embedding model: its embedding, a query after the text, and its weight on each token of a unit. */
  pooled?: { name: string; weights: Record<string, number[]> } | null;
  firstQuery: number;
  causal: boolean;
  patches: [number, number] | null;
  /** An image within a text: the positions of its patches, row by row. */
  picture?: { rows: number; columns: number; places: number[] } | null;
  image: Packed | null;
  residual: number;
  layers: number[];
  ends: number[];
  levels: string[];
  steps: StepShape[];
  weights: Packed | Rounded | null;
  exact: boolean;
  methods: Record<string, Record<string, Table<Packed> | null>>;
  heads: { queries: number[]; counts: number[]; weights: Packed } | null;
  importance: Importance[];
  sentences?: Sentences | null;
  origin?: Record<string, Origin> | null;
  missing: string;
  /** What the numbers mean, by unit. */
  notes: Record<string, string[]>;
  /** By unit: notes on the rows of a query (null for every query), for each method at each layer. */
  reliability: Record<string, { query: number | null; notes: Record<string, string[][]> }>;
  /** Certificates of the flows to the strongest words. */
  flows: (Flow & { unit: string })[];
  leftOut: string[];
  state: { query?: number; layer?: number; method?: string; unit?: string; special?: boolean };
  /** The view that a page was saved with. */
  view?: string;
}

// The page of one text.

export type Data = Awaited<ReturnType<typeof read>>;
/** The selection: see state.js for the letters. */
export interface Selection {
  q: number;
  l: number;
  t: number;
  u: string;
  s: number;
  v: string;
  m: string;
  h: string;
  k: string;
  o: string;
  a: string;
  x: number;
  d: number;
  theme: string;
}
/** The selection, corrected to fit the document. */
export interface Now {
  unit: string;
  tokens: string[];
  special: boolean[];
  parts: string[];
  names: string[];
  query: number;
  layer: number;
  inputs: number[];
  token: number;
  layerNames: string[];
  layerName: string;
  queryName: string;
  joins: boolean[];
}
export interface Method {
  name: string;
  title: string;
  short: string;
  what: string;
  /** What it measures, in a sentence for newcomers. */
  asks: string;
  importance: boolean;
}
/** What the first screen shows: the method, its values over all inputs, which inputs are not shaded, and shades from -1 to
 * 1, NaN for none. */
export interface Lead {
  method: Method;
  values: Float64Array;
  apart: boolean[];
  shades: number[];
  shareOf(token: number): number;
}
/** A method with its values over the inputs shown; null if the page has none. */
export interface MethodRow extends Method {
  values: number[] | null;
  shares?: number[];
  exact?: boolean;
  correlations?: { name: string; value: number }[];
}
export type ValuedRow = MethodRow & { values: number[]; shares: number[] };
export interface Rows {
  rows: Float64Array[];
  exact: boolean;
}
export interface Edge {
  step: number;
  query: number;
  key: number;
}
/** A maximum flow with its proof, as view/flow_paths.py writes it. edges, capacity: of the whole minimum cut. */
export interface Flow {
  query: number;
  layer: number;
  token: number;
  value: number;
  gap: number;
  edges: number;
  capacity: number;
  /** The widest edges of the cut: step, query, key, capacity. */
  cut: [number, number, number, number][];
  /** The widest paths: flow, rollout, and the positions from the query down. */
  paths: number[][];
  limit: string;
}
/** Requests from a page to `attnflow serve`. */
export interface Server {
  rows(question: { unit: string; query: number }): Promise<ServedRows>;
  paths(question: { unit: string; query: number; layer: number; token: number }): Promise<Flow>;
}
export interface ServedRows {
  unit: string;
  query: number;
  methods: Record<string, Table<Packed> | null>;
}
/** The subject of exports. */
export interface Exported {
  data: { text: unknown; model: unknown; prediction: unknown };
  announce(text: string): void;
  /** The selection, in the format of `State.text`. */
  view?(): string;
}
export interface Page {
  data: Data;
  state: State<Selection>;
  methods: Method[];
  server: Server | null;
  modelName: string;
  tip: Tip;
  picture: HTMLCanvasElement | null;
  colours(): Palette;
  now(): Now;
  values(name: string): (Rows & { row: Float64Array }) | null;
  width(): number;
  stateName(level: number, position: number, most?: number): string;
  titleOf(name: string): string;
  openView(view: string): void;
  switchUnit(unit: string): void;
  switchTheme(): void;
  announce(text: string): void;
  soon(name: string, work: () => void): void;
  whyNot(name: string): Child[];
  whyNoHeads(): string;
  view(): string;
}
export interface Panel {
  node: HTMLElement;
  update(changed: Changed): void;
}

// The pages of panels: a corpus and an answer.

export type Choices = Record<string, string>;
export interface Section {
  node: HTMLElement;
  needs: string[];
  draw(): void;
}
export interface PanelsPage {
  state: State<Choices>;
  tip: Tip;
  follow(follower: () => void): void;
  colours(): Palette;
  /** Aborts when the page is closed. */
  signal: AbortSignal;
}
export interface Provenance {
  model?: string;
  revision?: string;
  dtype?: string;
  [name: string]: any;
}

/** The summary of a corpus, as attnflow.corpus writes it. */
export interface CorpusSummary {
  folder: string;
  input?: string;
  texts: number;
  scored: number;
  truncated: number;
  several_queries: number;
  finished: boolean;
  parts: number;
  edges: string | null;
  /** Whether the texts are prompts whose answers are explained; span: or only a part of each answer. */
  answers: boolean;
  span: string | null;
  /** The unit of the scores: "token", "word", "sentence" or "paragraph". */
  unit: string;
  /** Methods about the answer; those whose scores may be negative. */
  about_answer: string[];
  signed: string[];
  differing: string[];
  views: string[];
  least: number;
  types: { fields: string[]; rows: any[][]; punctuation: boolean };
  /** The method and the layer of the first screen. */
  lead: { method: string; layer: string };
  /** Words of all texts, by method: type, lift and count. */
  top: Record<string, [number, number, number][]>;
  /** Whether the first token is a sink, which is left out. */
  sink: boolean;
  splits: CorpusSplit[];
  /** Columns that make no split, and why. */
  unsplit: { name: string; why: string }[];
  no_columns: string | null;
  /** Words in context: places among the texts, by list ("" or split.group) and type. */
  contexts: { texts: CorpusContext[]; of: Record<string, Record<string, number[]>>; omitted: number; method: string };
  errors: { kind: string; count: number; examples: { id: string; message: string | null }[] }[];
  provenance: Provenance;
}
export interface CorpusSplit {
  name: string;
  predicted: boolean;
  texts: number;
  others: number;
  groups: CorpusGroup[];
}
export interface CorpusGroup {
  value: string;
  texts: number;
  /** Type, lift, how much it exceeds the lift in all other texts, and count. */
  received: Record<string, [number, number, number | null, number][]>;
}
export interface CorpusContext {
  row: number;
  id: string;
  at: number;
  size: number;
  first: number;
  tokens: string[];
  special: boolean[];
  /** Special tokens, and others that are not shaded. */
  apart: boolean[];
  joins: boolean[];
  parts: string[] | null;
  prediction: string | null;
  lifts: Record<string, (number | null)[]>;
}
/** A word in a list on the first screen. */
export type GroupWord = TokenType & { type: number; lift: number; difference: number | null; count: number };
/** A token of some list. */
export interface TokenType {
  id: number | null;
  text: string;
  others: string[];
  punctuation: boolean;
}
export type Corpus = ReturnType<typeof readCorpus>;
export type CorpusPage = PanelsPage & { corpus: Corpus };

// The document of an answer, as view/answer_page.py writes it.

/** A text and the numbers of its tokens. */
export type Piece = [string, ...number[]];
/** A matrix, or the largest entries of each row with their places; covered: the smallest part of a row's size they cover. */
export interface Kept {
  values: Packed;
  places: Packed | null;
  width: number;
  covered: number;
}
export interface KeptMatrix {
  width: number;
  covered: number;
  visitRow(row: number, visit: (place: number, value: number) => void): void;
  at(row: number, place: number): number;
}
/** of: the unit of each token, -1 for none; null for tokens. rows, passed, faded: over units and, last, what is in none:
 * signed parts and shares of each answer token, and fading of each of its spans. opening: the sources of the span that
 * the page opens with, if the rows are not complete. */
export interface AnswerUnitDocument {
  of: Packed | null;
  count: number;
  names: string[] | null;
  exact: boolean;
  rows: (Kept & { totals: number[] }) | null;
  passed: Kept | null;
  faded: Kept | null;
  opening: { shares: Packed; parts: Packed } | null;
}
export interface AnswerUnit {
  of: Int32Array;
  count: number;
  exact: boolean;
  readonly texts: string[];
  rows: (KeptMatrix & { totals: number[] }) | null;
  passed: KeptMatrix | null;
  faded: KeptMatrix | null;
  opening: { shares: Floats; parts: Floats } | null;
}
export interface AnswerDocument {
  format: string;
  version: number;
  /** size: how many tokens. names: of tokens that are not a piece of their own. marks: numbers of the tokens that a chat
   * template or the tokenizer wrote. */
  prompt: { pieces: Piece[]; size: number; names: Record<string, string>; marks: number[] };
  /** words: the number of each token's word, or null. */
  answer: {
    pieces: Piece[];
    tokens: string[];
    words: (number | null)[];
    logProbabilities: number[];
    written: boolean;
  };
  evidence: { log_odds: number; prompt: number; answer: number; constants: number; first_token?: number; gap: number };
  /** For each answer token: what supports it, what counts against it, and its support at the first token. */
  /** Why the shares of a span should not be read as they are, by "first-last" token. */
  reliability: Record<string, string[]>;
  /** Signed parts, and for complete rows: the support of a token by the prompt and by both texts, sums of parts of the prompt,
   * the answer and the first token, shares of answer tokens, and the share of all marks. */
  matrix: Kept & {
    totals: [number, number][];
    sums: [number, number, number][];
    inside: Kept;
    marks: number[];
  };
  units: Record<string, AnswerUnitDocument>;
  /** The parts of the answer (first and last token) that fading was computed for, and their kind. */
  fading: { spans: [number, number][]; by: string } | null;
  unit: string;
  span: [number, number];
  verified: { unit: string; count: number; falls: number[]; measured: number[] } | null;
  provenance: Provenance;
  /** An image within the prompt. maps: [answer token, patch], shares of everything from the prompt; patches row by row. */
  picture?: { rows: number; columns: number; maps: Packed; image: Packed | null } | null;
}
/** Consecutive tokens of the answer: the first and the last. */
export interface Span {
  from: number;
  to: number;
}
/** The sources of a span: shares of units and of what is in none, and what is left on answer tokens. first: the first token's
 * share of everything. marks, itself: shares of chat marks and of the answer's own tokens, of the rest. */
export interface Sources {
  method: string;
  units: Float64Array;
  outside: number;
  left: Float64Array;
  first: number;
  marks: number;
  itself: number;
  odds: { log: number; prompt: number; answer: number };
  atFirst: number;
}
export type AnswerData = Awaited<ReturnType<typeof readAnswer>>;
/** Requests from the page of an answer to `attnflow serve`. */
export interface AnswerServer {
  /** Leaves one unit of the prompt out, and returns how much log p of the span falls. */
  leaveOut(question: { span: [number, number]; unit: string; number: number }): Promise<{ fall: number }>;
}
/** The effect of leaving a source out: a fall of log p, once it is known, or an error. */
export interface Truth {
  fall?: number;
  waiting?: boolean;
  failed?: string;
}
export interface AnswerPage extends PanelsPage {
  data: AnswerData;
  server: AnswerServer | null;
  truth: ReturnType<typeof truths>;
  /** Highlights a unit of the prompt and what it contributes to, or nothing. into: scrolls to it. */
  point(unit: number, into?: boolean): void;
  /** Opens Details. */
  open(): void;
}
/** The page of an answer. update: shows the same answer after it has grown; the selection stays. */
export interface ShownAnswer {
  state: State<Choices>;
  close(): void;
}

/** One of two texts whose similarity is explained: its words, and what each contributes, by several methods. */
export interface SimilarText {
  text: string;
  tokens: string[];
  special: boolean[];
  methods: { name: string; values: number[] }[];
}

export interface SimilarityDocument {
  format: string;
  version: number;
  value: number;
  measure: string;
  model: Record<string, any>;
  texts: [SimilarText, SimilarText];
}
