"use strict";(()=>{function l(t,r={},...e){return O(document.createElement(t),r,e)}function C(t){return[t].flat(1/0).filter(e=>e!=null&&e!==!1)}function O(t,r,e){for(let[o,s]of Object.entries(r))s==null||
s===!1||(typeof s=="function"?t.addEventListener(o.slice(2),s):t.setAttribute(o,s===!0?"":String(s)));return t.append(...C(
e)),t}var b=t=>t instanceof Error?t.message:String(t);function N(t,r=3){return t===1/0?"∞":Number.isFinite(t)?t!==0&&Math.abs(
t)<.5*10**-r?t.toExponential(1).replace("e-","e−").replace(/^-/,"−"):t.toFixed(r).replace("-","−"):"–"}function k(t,r,e={}){return l("button",{type:"button",onclick:r,...e},t)}function F(t,r){return t.map(({rows:e,cols:o,values:s,carried:n,residual:a})=>{if(!a||r===0)return{rows:e,cols:o,values:new Float64Array(
s),carried:n};let i=s.slice(),[h,f]=s instanceof Float32Array?[1-r,r].map(Math.fround):[1-r,r];for(let c=0;c<i.length;c++)
i[c]*=h;for(let c=0;c<Math.min(e,o);c++)i[c*o+c]+=f;return{rows:e,cols:o,values:new Float64Array(i),carried:n}})}function q(t,{rows:r,cols:e,values:o}){let s=new Float64Array(e),n=0;for(;n+3<r;n+=4){let a=t[n],i=t[n+1],h=t[n+2],f=t[n+
3];if(!(a===0&&i===0&&h===0&&f===0))for(let c=0,u=n*e;c<e;c++,u++)s[c]+=a*o[u]+i*o[u+e]+h*o[u+2*e]+f*o[u+3*e]}for(;n<r;n++)
for(let a=0;a<e;a++)s[a]+=t[n]*o[n*e+a];return s}function j(t,r){return r.reduceRight((e,o)=>q(e,o),t)}function S(t,r,e){let{cols:o,values:s}=t[r];return j(s.slice(e*o,(e+1)*o),t.slice(0,r))}var x={layers:48,positions:128},M={tokens:"[CLS] the key to the cabinets [EOS]",weights:`[[[0.25395, 0.04134, 0.05665, 0\
.02781, 0.00842, 0.48751, 0.12432],
  [0.54555, 0.10294, 0.20528, 0.00916, 0.02912, 0.05171, 0.05624],
  [0.06805, 0.25432, 0.13207, 0.36745, 0.04409, 0.03945, 0.09457],
  [0.30479, 0.00448, 0.16789, 0.08135, 0.25424, 0.06004, 0.12721],
  [0.39316, 0.02176, 0.02798, 0.19578, 0.1062, 0.23908, 0.01603],
  [0.00298, 0.00583, 0.0637, 0.19856, 0.13865, 0.30801, 0.28227],
  [0.04852, 0.00961, 0.07398, 0.02064, 0.01738, 0.68023, 0.14963]],
 [[0.06243, 0.02101, 0.47936, 0.03827, 0.02554, 0.26719, 0.10619],
  [0.07925, 0.25585, 0.1495, 0.10518, 0.11432, 0.19259, 0.10331],
  [0.08133, 0.01895, 0.22214, 0.19061, 0.01789, 0.35624, 0.11283],
  [0.08809, 0.18924, 0.30873, 0.16038, 0.08962, 0.07752, 0.08642],
  [0.10507, 0.14959, 0.22371, 0.12984, 0.11059, 0.18398, 0.09721],
  [0.11009, 0.0358, 0.28962, 0.14674, 0.12334, 0.14483, 0.14958],
  [0.07438, 0.05202, 0.42103, 0.07374, 0.03935, 0.23954, 0.09994]],
 [[0.06146, 0.03459, 0.3087, 0.05985, 0.15296, 0.29966, 0.08278],
  [0.07448, 0.14384, 0.29752, 0.15268, 0.01791, 0.24502, 0.06856],
  [0.05863, 0.29384, 0.0231, 0.20612, 0.05573, 0.29355, 0.06903],
  [0.03455, 0.18076, 0.32732, 0.08548, 0.1754, 0.16999, 0.0265],
  [0.05972, 0.18301, 0.2374, 0.21339, 0.09143, 0.15237, 0.06268],
  [0.15448, 0.04229, 0.0187, 0.04821, 0.32331, 0.19127, 0.22175],
  [0.08584, 0.10071, 0.21624, 0.07011, 0.1555, 0.24707, 0.12451]],
 [[0.04843, 0.03729, 0.41307, 0.12453, 0.01017, 0.10045, 0.26606],
  [0.0918, 0.1392, 0.09849, 0.10209, 0.19202, 0.32161, 0.05479],
  [0.07284, 0.23012, 0.1264, 0.20815, 0.0385, 0.19115, 0.13285],
  [0.07413, 0.21052, 0.14793, 0.08122, 0.27933, 0.14112, 0.06575],
  [0.08443, 0.07238, 0.04701, 0.093, 0.22693, 0.40972, 0.06653],
  [0.08961, 0.05526, 0.23624, 0.16511, 0.11374, 0.24069, 0.09935],
  [0.0486, 0.07653, 0.42883, 0.18119, 0.0399, 0.03415, 0.19081]],
 [[0.00801, 0.11029, 0.73156, 0.03094, 0.00701, 0.09959, 0.0126],
  [0.0295, 0.22409, 0.19235, 0.15959, 0.17983, 0.18392, 0.03072],
  [0.1508, 0.12626, 0.3373, 0.05126, 0.11193, 0.07397, 0.14847],
  [0.10076, 0.07696, 0.03317, 0.14438, 0.2207, 0.35724, 0.06679],
  [0.09682, 0.11859, 0.03698, 0.16583, 0.25002, 0.2511, 0.08065],
  [0.15849, 0.12815, 0.1268, 0.07254, 0.14311, 0.21831, 0.15258],
  [0.01421, 0.14805, 0.6347, 0.08193, 0.01422, 0.08629, 0.0206]],
 [[0.15282, 0.11161, 0.24402, 0.03126, 0.02989, 0.14678, 0.28361],
  [0.08787, 0.29063, 0.08317, 0.19236, 0.10919, 0.14242, 0.09437],
  [0.04925, 0.14061, 0.43078, 0.12014, 0.13694, 0.06635, 0.05593],
  [0.06236, 0.19052, 0.05118, 0.31767, 0.15497, 0.15614, 0.06716],
  [0.06904, 0.16039, 0.14702, 0.27872, 0.16633, 0.126, 0.0525],
  [0.11265, 0.14081, 0.19048, 0.11874, 0.11629, 0.14078, 0.18025],
  [0.15017, 0.14557, 0.15774, 0.04445, 0.0482, 0.18054, 0.27335]]]`};async function P(t){let r=Uint8Array.from(atob(t),n=>n.
charCodeAt(0)),e=await WebAssembly.compile(r),o={};for(let{module:n,name:a}of WebAssembly.Module.imports(e))(o[n]??={})[a]=
()=>{if(a==="proc_exit")throw new Error("the solver stopped");return 0};let s=(await WebAssembly.instantiate(e,o)).exports;
return s._initialize(),s}function R(t,r,e){let o=r[0].cols,s=o*o,n=t.malloc(8*s*r.length),a=t.malloc(8*o),i=new Float64Array(
t.memory.buffer,n,s*r.length);r.forEach((f,c)=>i.set(f.values,c*s)),t.flow_row(n,r.length,o,e,a);let h=new Float64Array(
t.memory.buffer,a,o).slice();return t.free(n),t.free(a),h}function U(t){let r;try{r=JSON.parse(t)}catch(n){throw new Error(
`The weights are not JSON (${b(n)}). Expected nested lists of numbers.`)}let e=v(r,"The weights are");if(e.length>x.layers)
throw new Error(`There are ${e.length} layers. This page takes ${x.layers}.`);let o=e.map((n,a)=>{let i=v(n,`L${a+1} is`),
f=(Array.isArray(i[0])&&Array.isArray(i[0][0])?i:[i]).map(p=>W(p,a)),c=f[0].map((p,w)=>f.reduce((m,d)=>m+d[w],0)/f.length),
u=Math.sqrt(c.length);return{rows:u,cols:u,values:c,carried:[0,0],residual:!0}}),s=o.findIndex(n=>n.rows!==o[0].rows);if(s>
0)throw new Error(`L${s+1} has ${o[s].rows} positions, and L1 has ${o[0].rows}. Expected the same.`);return o}function W(t,r){
let e=v(t,`L${r+1} is`).map(n=>v(n,`A row of L${r+1} is`)),o=e.length;if(o>x.positions)throw new Error(`There are ${o} p\
ositions. This page takes ${x.positions}.`);let s=e.findIndex(n=>n.length!==o);if(s>=0)throw new Error(`Row ${s} of L${r+
1} has ${e[s].length} weights. Expected ${o}, one for each position.`);return new Float64Array(e.flat().map(n=>{if(typeof n!=
"number"||!(n>=0)||n===1/0)throw new Error(`L${r+1} has the weight ${JSON.stringify(n)}. Expected numbers from 0 on.`);return n}))}
function v(t,r){if(!Array.isArray(t)||!t.length)throw new Error(`${r} no list, or an empty one. Expected a list.`);return t}
function _(t,r){let e=l("textarea",{rows:"10",spellcheck:"false","aria-label":"attention weights"}),o=l("input",{"aria-l\
abel":"tokens, separated by spaces"}),s=l("input",{type:"number",min:"0",max:"1",step:"0.1",value:"0.5"}),n=l("select"),
a=l("select"),i=l("div",{"aria-live":"polite"});function h(){try{let u=U(e.value),p=Number(s.value);if(s.value===""||!(p>=
0&&p<=1))throw new Error(`The residual weight is ${s.value||"empty"}. Expected a number from 0 to 1.`);let w=o.value.trim().
split(/\s+/),m=u[0].rows,d=Array.from({length:m},(L,y)=>w.length===m?w[y]:String(y));I(n,u.map((L,y)=>`L${y+1}`),u.length-
1),I(a,d,0);let A=Number(n.value),g=Number(a.value),E=F(u,p).slice(0,A+1),T=u[A].values.slice(g*m,(g+1)*m);B(i,d,[T,S(E,
A,g),R(r,E,g)])}catch(u){i.replaceChildren(l("p",{class:"try-error"},b(u)))}}let f=k("example",()=>{[e.value,o.value]=[M.
weights,M.tokens],h()}),c=[l("label",{},"layer ",n),l("label",{},"query ",a),l("label",{},"residual weight ",s)];t.replaceChildren(
l("label",{},"attention weights: [layer][query][key] or [layer][head][query][key]",e),l("label",{},"tokens (optional)",o),
l("p",{class:"try-fields"},...c,f),i);for(let u of[e,o,s,n,a])u.addEventListener("input",h);f.click()}function I(t,r,e){
let o=t.value!==""&&Number(t.value)<r.length?t.value:String(e);t.replaceChildren(...r.map((s,n)=>l("option",{value:String(
n)},s))),t.value=o}function B(t,r,e){let o=r.map((n,a)=>l("tr",{},l("th",{scope:"row"},n),...e.map(i=>l("td",{"data-valu\
e":String(i[a])},l("span",{class:"try-bar",style:`width:${4*i[a]}em`}),N(i[a]))))),s=["token","raw","rollout","flow"].map(
n=>l("th",{scope:"col"},n));t.replaceChildren(l("table",{},l("thead",{},l("tr",{},...s)),l("tbody",{},...o)))}var $=document.
querySelector("#try");$ instanceof HTMLElement&&P(globalThis.attnflowSolver).then(t=>_($,t),t=>$.textContent=`This brows\
er cannot run the solver: ${b(t)}`);})();
